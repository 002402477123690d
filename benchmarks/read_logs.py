"""Compare the speed of reading logs with `wc -l` and `grep -c` on the same files in the same run.

Run `python benchmarks/read_logs.py`; it prints a table for docs/performance.md. It makes files of lines as
programs write them: a job with much output between its steps, one with the timers of all ranks, one with
nothing to read, and only training lines; what Megatron-LM's --timing-log-option all and minmax write with
every step (times of 32 and of 512 ranks without their start, and tables of minimum and maximum); and lines of
other trainers. `--only` selects some. The files are in the page cache for all three programs, rounds
alternate, and the figures are the best of them. Speeds are per CPU second, so that other work on the machine
counts less. `peak` is the largest resident memory of the reader.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

from benchmarks.tables import markdown  # noqa: E402

MEGABYTE = 1_000_000
RANKS = 32
READER = """
import re, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from rdm_log.summary import NothingToRead, summarise
try:
    summarise([Path(sys.argv[2])])
except NothingToRead:
    pass
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
"""
# RUSAGE_SELF may include the peak of the process that started this one.


def step(number: int) -> str:
    """Return a training line of Megatron-LM."""
    return (
        f" iteration {number:8d}/99999999 | consumed samples: {number * 64:12d} |"
        f" elapsed time per iteration (ms): {1400 + number % 17:.1f} | learning rate: 7.031E-07 |"
        f" global batch size:    64 | lm loss: {2 + 8 / (1 + number):.6E} | loss scale: 262144.0 |"
        " grad norm: 16.666 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def other_output(number: int) -> str:
    """Return lines as NCCL and libraries write them."""
    return "".join(
        f"n{number % 8:03d}:{3000 + rank}:{4000 + rank} [{rank % 4}] NCCL INFO Channel {rank:02d}/0 :"
        f" {rank}[{rank % 4}] -> {rank + 4}[{rank % 4}] [send] via NET/IB/3/GDRDMA\n"
        for rank in range(RANKS)
    )


def timers(number: int) -> str:
    """Return timers of all ranks as FASOP's fork writes them, with start times of each micro-batch."""
    lines = ["times across ranks (ms):\n"]
    for name in ("forward-compute", "backward-compute", "optimizer"):
        lines.append(f"  {name}:\n")
        for rank in range(RANKS):
            moments = " ".join(f"{1686726500 + number + n / 7:.6f}" for n in range(16))
            lines.append(f"     rank {rank:2d}: {700 + rank:.2f}\n {name} start time lst: {moments}\n")
            lines.append(f" {name} end time lst: {moments}\n")
    return "".join(lines)


NAMES = (
    "forward-backward",
    "forward-compute",
    "backward-compute",
    "batch-generator",
    "forward-recv",
    "forward-send",
    "backward-recv",
    "backward-send",
    "forward-send-backward-recv",
    "backward-send-forward-recv",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "all-grads-sync",
    "params-all-gather",
    "optimizer-copy-to-main-grad",
    "optimizer-clip-main-grad",
    "optimizer-count-zeros",
    "optimizer-inner-step",
    "optimizer-copy-main-to-model-params",
    "optimizer",
)
"""Timers of Megatron-LM's ``training_log``."""


def ranks_alone(number: int, ranks: int = RANKS) -> str:
    """Return timers of all ranks as Megatron-LM writes them (``_get_all_ranks_time_string``)."""
    lines = ["times across ranks (ms):\n"]
    for index, name in enumerate(NAMES):
        lines.append(f"  {name}:\n")
        base = (number * 7 + index * 131) % 1500
        lines += [f"     rank {rank:2d}: {base + rank * 37 % 11 + rank / 100:.2f}\n" for rank in range(ranks)]
    return "".join(lines)


def shortest_and_longest(number: int) -> str:
    """Return a table as Megatron-LM writes it (``_get_global_min_max_time_string``)."""
    lines = ["(min, max) time across ranks (ms):\n"]
    for index, name in enumerate(NAMES):
        least = (number * 7 + index * 131) % 1500 + index / 7
        lines.append(f"    {(name + ' ').ljust(48, '.')}: ({least:.2f}, {least + number % 13 / 3:.2f})\n")
    return "".join(lines)


def torchtitan(number: int) -> str:
    """Return a step as torchtitan writes it (``log_metrics``)."""
    return (
        f"[rank0]:[titan] 2025-02-04 10:{number // 60 % 60:02d}:{number % 60:02d},131 - root - INFO -"
        f" step: {number:2}  loss: {2 + 8 / (1 + number):7.4f}  grad_norm: {1 + number % 17 / 100:7.4f}"
        f"  memory: 38.22GiB(48.33%)  tps: {7000 + number % 997:,}  tflops: 390.12  mfu: 39.45%\n"
    )


def with_a_bar(number: int) -> str:
    """Return a step as Hugging Face's Trainer writes it, after tqdm's bar."""
    step = {
        "loss": 2 + 8 / (1 + number),
        "grad_norm": 1.25,
        "learning_rate": 2e-05,
        "epoch": number / 1000,
    }
    bar = f"\r  0%|{' ' * 10}| {number}/99999999 [00:17<01:06,  1.{number % 97:02d}s/it]"
    return f"{bar}{step}\n"


KINDS: dict[str, Callable[[int], str]] = {
    "a step in 100 lines": lambda number: step(number) + other_output(number) * 3,
    "timers of 32 ranks": lambda number: step(number) + timers(number),
    "nothing to read": other_output,
    "training lines alone": step,
    "times of 32 ranks alone": lambda number: step(number) + ranks_alone(number),
    "times of 512 ranks alone": lambda number: step(number) + ranks_alone(number, 512),
    "(min, max) tables": lambda number: step(number) + shortest_and_longest(number),
    "torchtitan's lines": torchtitan,
    "Hugging Face's lines": with_a_bar,
}


def make(path: Path, kind: Callable[[int], str], size: int) -> None:
    """Write a log of at least this size, in bytes."""
    with path.open("w") as file:
        number = 0
        while file.tell() < size:
            file.writelines(kind(number + n) for n in range(1, 201))
            number += 200


def seconds(command: list[str]) -> tuple[float, str]:
    """Run a program; return its CPU seconds and output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, done.stdout


def measure(path: Path, rounds: int) -> list[str]:
    """Return a file's row: speeds in MB/s, ratios of times, and the reader's memory."""
    commands = {
        "ours": [sys.executable, "-c", READER, str(ROOT / "trainer"), str(path)],
        "wc": ["wc", "-l", str(path)],
        "grep": ["grep", "-c", " iteration ", str(path)],
    }
    seconds(commands["wc"])
    best = dict.fromkeys(commands, float("inf"))
    peak = ""
    for _ in range(rounds):
        for name, command in commands.items():
            took, output = seconds(command)
            best[name] = min(best[name], took)
            if name == "ours":
                peak = output.strip()
    size = path.stat().st_size / MEGABYTE
    speeds = [f"{size / best[name]:,.0f}" for name in commands]
    ratios = [f"{best['ours'] / best[name]:.1f}" for name in ("wc", "grep")]
    return [f"{size:,.0f}", *speeds, *ratios, peak]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=400, help="size of each file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=KINDS, nargs="+", default=list(KINDS), help="logs to measure")
    options = parser.parse_args()
    rows = [["log", "MB", "MB per CPU s", "`wc -l`", "`grep -c`", "times `wc`", "times `grep`", "peak MiB"]]
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            path = Path(folder) / "n1.out"
            make(path, KINDS[name], options.megabytes * MEGABYTE)
            rows.append([name, *measure(path, options.rounds)])
    print(f"{os.cpu_count()} cores, {platform.machine()}, CPython {platform.python_version()}\n")
    print(markdown(rows))


if __name__ == "__main__":
    main()
