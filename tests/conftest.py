"""What every test shares: the repository is importable as the collection `rdm.provision`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from trainer.tests.temporary import pytest_configure, pytest_sessionfinish, pytest_terminal_summary

__all__ = [
    "ROOT",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
]

ROOT = Path(__file__).resolve().parent.parent
COLLECTIONS = ROOT / ".collections"

sys.path[:0] = [str(COLLECTIONS), str(ROOT)]

# No deadlines, which a busy machine would miss. Each run draws other examples.
settings.register_profile(
    "any-machine", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude from garbage collection what stays until the end: the tests and their imports."""
    gc.freeze()
    gc.set_threshold(10_000)
