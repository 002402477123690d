"""Programs that measure, here and now, and print tables for docs/performance.md."""
