# SPDX-License-Identifier: GPL-3.0-or-later
"""The profilers that start a rank's process. Pure functions in a table.

Sources: NVIDIA Nsight Systems User Guide, "CLI profile command options"; ROCprofiler-SDK, "Using rocprofv3".
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rdm_core.errors import TrainerError

PROFILED_VARIABLE = "RDM_PROFILED"
"""Set in a process that its profiler has started."""
PROFILES = "profile"
"""The directory of the profilers' output, in a job's directory."""


@dataclass(frozen=True)
class Profiler:
    """A program that starts another and records it.

    Attributes:
        program: Its name on the PATH.
        words: (output path without a suffix) → its arguments, which precede the command.
    """

    program: str
    words: Callable[[Path], list[str]]


def _nsys(output: Path) -> list[str]:
    """Nsight Systems, which records once the training starts the CUDA profiler."""
    return [
        *("profile", "-t", "cuda,nvtx", "--sample=none", "--cpuctxsw=none"),
        *("--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
        *("--force-overwrite=true", f"--output={output}"),
    ]


def _rocprof(output: Path) -> list[str]:
    """ROCprofiler, in the format that Perfetto opens."""
    return [
        *("--hip-trace", "--kernel-trace", "--memory-copy-trace", "--rccl-trace", "--marker-trace"),
        *("--output-format", "pftrace", "-d", str(output.parent), "-o", output.name, "--"),
    ]


PROFILERS: Mapping[str, Profiler] = {
    "nsys": Profiler("nsys", _nsys),
    "rocprof": Profiler("rocprofv3", _rocprof),
}


def wrapped(
    kind: str, ranks: Sequence[int], rank: int, directory: Path, command: Sequence[str]
) -> list[str] | None:
    """Return the command that runs a rank under a profiler; None if the rank is not profiled.

    Raises:
        TrainerError: The profiler is not on the PATH.
    """
    profiler = PROFILERS.get(kind)
    if profiler is None or rank not in ranks:
        return None
    if shutil.which(profiler.program) is None:
        raise TrainerError(
            f"launcher.profiler is {kind}, but there is no {profiler.program} on rank {rank}'s PATH; install "
            "it there, or use torch."
        )
    return [profiler.program, *profiler.words(directory / PROFILES / f"rank-{rank:05d}"), *command]
