# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's accelerators as their vendors' tools see them, and lines about how busy they are."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from rdm_job.processes import usage

__all__ = ["Sampler", "count"]

_MIB = 1024 * 1024
_NVIDIA = "index,name,temperature.gpu,utilization.gpu,memory.used,memory.total"
_TIMEOUT_S = 10


def count(accelerator: str) -> int | None:
    """Return how many accelerators this container has, or None where any number of processes goes."""
    if accelerator == "cuda":
        return len(_output(["nvidia-smi", "-L"]).splitlines())
    if accelerator == "rocm":
        return len(list(Path("/dev/dri").glob("renderD*"))) if Path("/dev/kfd").exists() else 0
    return None


class Sampler:
    """Makes lines such as ``[0] NVIDIA A10 | 49'C,  98 % | 21040 / 22731 MB |``, one for each device.

    Without accelerators there is one line, for this job's use of the processors.

    Args:
        accelerator: ``cuda``, ``rocm`` or ``cpu``.
    """

    def __init__(self, accelerator: str) -> None:
        self._accelerator = accelerator
        self._before: dict[int, tuple[float, int]] = {}
        self._at = time.monotonic()

    def lines(self, processes: list[int]) -> list[str]:
        """Return the lines of this moment.

        Args:
            processes: This job's on this node.
        """
        if self._accelerator == "cuda":
            return _nvidia(_output(["nvidia-smi", f"--query-gpu={_NVIDIA}", "--format=csv,noheader,nounits"]))
        if self._accelerator == "rocm":
            return _rocm(
                _output(
                    [
                        *("rocm-smi", "--showproductname", "--showtemp", "--showuse"),
                        *("--showmeminfo", "vram", "--json"),
                    ]
                )
            )
        return [self._processors(processes)]

    def _processors(self, processes: list[int]) -> str:
        now, used = time.monotonic(), usage(processes)
        spent = sum(
            seconds - self._before[process][0]
            for process, (seconds, _) in used.items()
            if process in self._before
        )
        busy = 100 * spent / max(now - self._at, 1e-3) / (os.cpu_count() or 1)
        self._before, self._at = used, now
        memory = sum(resident for _, resident in used.values()) / _MIB
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _MIB
        return _line(0, f"{os.cpu_count()} CPU cores", None, min(busy, 100.0), memory, whole)


def _line(
    index: int, name: str, celsius: float | None, percent: float, used_mib: float, whole_mib: float
) -> str:
    heat = f"{celsius:2.0f}'C, " if celsius is not None else ""
    return f"[{index}] {name:<16} | {heat}{percent:3.0f} % | {used_mib:5.0f} / {whole_mib:5.0f} MB |"


def _nvidia(text: str) -> list[str]:
    """Return lines of what nvidia-smi printed as CSV."""
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == 6:
            index, name, *numbers = row
            celsius, percent, used, whole = (float(n) if _is_number(n) else 0.0 for n in numbers)
            found.append(_line(int(index), name, celsius, percent, used, whole))
    return found


def _rocm(text: str) -> list[str]:
    """Return lines of what rocm-smi printed as JSON, whose keys differ between its releases."""
    try:
        cards = json.loads(text)
    except ValueError:
        return []
    found = []
    for card, values in sorted(cards.items()):
        if not card.startswith("card") or not isinstance(values, dict):
            continue

        def number(*words: str, values: dict[str, str] = values) -> float:
            for key, value in values.items():
                if all(word in key.lower() for word in words) and _is_number(str(value)):
                    return float(value)
            return 0.0

        name = str(values.get("Card Series") or values.get("Card series") or "AMD GPU")
        used = number("vram", "used") / _MIB
        whole = number("vram", "total memory (b)") / _MIB
        found.append(_line(int(card[4:]), name, number("temperature"), number("gpu use"), used, whole))
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _output(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
