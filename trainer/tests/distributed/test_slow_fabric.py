# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark of slow fabrics also works without an accelerator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.processes import TIMEOUT_S

ROOT = Path(__file__).resolve().parents[3]
BANDWIDTH = 0.002
"""Of the fabric, in GB/s: slow enough that a step takes some tenths of a second longer."""
PARAMETERS = 512 * 64 + 64 * 64 + 4 * (12 * 64**2 + 13 * 64) + 2 * 64
"""Of the tiny GPT: embeddings of words and positions, four blocks, the last norm."""


@pytest.mark.parametrize("ways", ["ours", pytest.param("ours,ddp,fsdp2", marks=pytest.mark.long)])
@pytest.mark.parametrize(("ranks", "options"), [(2, []), (8, ["--alone"])], ids=["together", "alone"])
def test_each_variant_takes_at_least_the_time_of_its_bytes(
    tmp_path: Path, ranks: int, options: list[str], ways: str
) -> None:
    file = tmp_path / "measured.json"
    result = subprocess.run(
        [
            *(sys.executable, str(ROOT / "benchmarks" / "slow_fabric.py"), "--quick", "--ways", ways),
            *("--bandwidths", f"{BANDWIDTH},0", "--accumulation", "2", "--json", str(file)),
            *("--ranks", str(ranks), *options),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    measured = json.loads(file.read_text())
    # Gradients and weights in fp32, to each other rank.
    bytes_ = 8 * PARAMETERS * (ranks - 1) / ranks
    for way in ways.split(","):
        # Over Gloo our engine sums gradients on all ranks. It pads, and sums two scalars.
        ours = pytest.approx(bytes_ if options else 1.5 * bytes_, rel=0.005)
        assert measured[way]["sent"] == (ours if way == "ours" else bytes_)
        # Our engine sends a third of it, the weights, from the end of the step before on.
        least = measured[way]["sent"] * 0.66 / (BANDWIDTH * 1e9)
        assert measured[way]["steps"][f"{BANDWIDTH}"][0] >= least > 0.2
        assert measured[way]["fabric"][f"{BANDWIDTH}"] <= BANDWIDTH * 1e9
    assert "| no limit " in result.stdout
