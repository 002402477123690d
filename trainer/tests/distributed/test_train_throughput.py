# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmarks of training and of a resume also work without an accelerator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.processes import TIMEOUT_S

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("layouts", ["one", pytest.param("one,DP 2", marks=pytest.mark.long)])
def test_benchmark_quick_mode_runs_on_cpu(tmp_path: Path, layouts: str) -> None:
    file = tmp_path / "measured.json"
    result = subprocess.run(
        [
            sys.executable,
            str(ROOT / "benchmarks" / "train_throughput.py"),
            "--quick",
            "--shapes",
            "tiny",
            "--layouts",
            layouts,
            "--engine",
            "deepspeed,native",
            "--together",
            "2",
            # Each reader's workers would import torch again.
            "--set",
            "data.workers=0",
            "--json",
            str(file),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    one, native, *spread = (measured["report"] for measured in json.loads(file.read_text())["results"])
    assert set(one["tokens_per_second"]) == set(native["tokens_per_second"]) == {"ours", "plain"}
    assert native["loss"] == pytest.approx(one["loss"], abs=1e-4)
    assert "| native " in result.stdout
    assert [set(two["tokens_per_second"]) for two in spread] == [{"ours"}] * 2 * ("DP 2" in layouts)
    assert ("| DP 2, native " in result.stdout) == ("DP 2" in layouts)


@pytest.mark.long
def test_resume_benchmark_in_another_layout_runs_on_cpu(tmp_path: Path) -> None:
    program = str(ROOT / "benchmarks" / "resume.py")
    result = subprocess.run(
        [sys.executable, program, "--shape", "tiny Llama", "--from", "TP 2", "--to", "PP 2 DP 2"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    # It fails if the losses do not continue.
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "| load | PP 2 DP 2 |" in result.stdout
    assert list(tmp_path.rglob("*.distcp")) == []
