"""The report of a job on a thousand nodes, whose files the benchmark writes, takes little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.report import make
from tests.conftest import ROOT

PROGRAM = """
import re, resource, sys
from pathlib import Path
from rdm_log.report.write import main
code = main(sys.argv[1:])
own = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
print(max(int(own), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""
"""It prints the peak in KiB of its largest process, after what it says. RUSAGE_SELF would be this test's own,
when that is more: it passes to what it starts."""
LIMIT = 1_000_000_000
"""Bytes, for ten GPU records of each kind on a node; docs/performance.md has those of a day."""
PROCESSES = 5
"""One that gathers, and four that read at the most."""


def test_a_report_of_a_thousand_nodes_takes_less_than_1_gb(tmp_path: Path) -> None:
    logs, page = tmp_path / "gpt-1", tmp_path / "page.html"
    logs.mkdir()
    make(logs, nodes=1000, steps=5000, records=10)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(logs), "--output", str(page)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "trainer")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    output, peak = done.stdout.splitlines()
    assert list(json.loads(output)["jobs"]) == ["gpt-1"]
    assert "of 8000 that reported it" in page.read_text()
    assert PROCESSES * int(peak) * 1024 < LIMIT
