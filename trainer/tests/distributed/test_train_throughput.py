# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark of training works where there is no accelerator, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import DEADLINE_S

ROOT = Path(__file__).resolve().parents[3]


def test_quick_look(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    result = subprocess.run(
        [
            sys.executable,
            str(ROOT / "benchmarks" / "train_throughput.py"),
            "--quick",
            "--shapes",
            "tiny",
            "--layouts",
            "one,DP 2",
            "--engine",
            "deepspeed,native",
            "--json",
            str(file),
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    one, native, two, _ = (measured["report"] for measured in json.loads(file.read_text())["results"])
    assert set(one["tokens_per_second"]) == set(native["tokens_per_second"]) == {"ours", "plain"}
    assert native["loss"] == pytest.approx(one["loss"], abs=1e-4)
    assert set(two["tokens_per_second"]) == {"ours"}
    assert "| DP 2, native " in result.stdout
