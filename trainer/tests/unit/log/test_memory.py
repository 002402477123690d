# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory of a process that reads a whole log does not grow with the log."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

READER = """
import re, sys
from pathlib import Path
from rdm_log.summary import summarise
from rdm_log.timeline import read_timers
summarise([Path(sys.argv[1])], series=True, needs_steps=False)
read_timers(Path(sys.argv[1]))
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""
"""The peak in KiB. RUSAGE_SELF would include the test's own peak, which a started program inherits."""


def step(number: int) -> str:
    return (
        f" iteration {number:8d}/99999999 | consumed samples: {number * 64:12d} | lm loss: {9 / number:.6E} |"
        f" elapsed time per iteration (ms): {1400 + number % 17:.1f} | grad norm: {number % 13:.3f} |\n"
    )


def timers(number: int) -> str:
    moments = " ".join(["1686726500.123456"] * 40)
    ranks = "".join(f"     rank {rank:2d}: {rank:.2f}\n a start time lst: {moments}\n" for rank in range(32))
    return step(number) + f"times across ranks (ms):\n  forward-compute:\n{ranks}  optimizer:\n{ranks}"


def ranks(number: int) -> str:
    """Each step has another timer and another order of ranks."""
    lines = "".join(f"     rank {(rank + number) % 32:2d}: {rank}.25\n" for rank in range(32))
    return step(number) + f"times across ranks (ms):\n  a{number % 50}:\n{lines}  optimizer:\n{lines}"


def tables(number: int) -> str:
    lines = "".join(f"    {f'timer-{n} ':.<48}: ({n}.25, {n + number % 9}.50)\n" for n in range(20))
    return step(number) + f"(min, max) time across ranks (ms):\n{lines}"


def other(number: int) -> str:
    return f"n1:{number}:4000 [0] NCCL INFO Channel 00/0 : 0[0] -> 4[0] [send] via NET/IB/3/GDRDMA\n"


def peak(path: Path, kind: Callable[[int], str], size: int) -> int:
    """Return the peak memory, in MiB, of a reader of a log of this size, in MiB."""
    number = 0
    with path.open("w") as file:
        while file.tell() < size * 1024 * 1024:
            file.writelines(kind(number + one) for one in range(1, 101))
            number += 100
    done = subprocess.run(
        [sys.executable, "-c", READER, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout) // 1024


@pytest.mark.parametrize("kind", [step, timers, ranks, tables, other])
def test_a_longer_log_takes_no_more_memory(tmp_path: Path, kind: Callable[[int], str]) -> None:
    few, many = (peak(tmp_path / "n1.out", kind, size) for size in (6, 16))
    assert many < few + 6
    assert many < 45
