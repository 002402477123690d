"""Measure the time and the memory of the report of a large job.

Run `python benchmarks/report.py`; it prints a row for docs/performance.md. It makes the files: each node's
milestones, memory of its ranks, warnings, and a day of GPU records of both kinds, one a minute; and the
training lines of all steps on the last node. It shows CPU seconds, too, which vary less on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.read_logs import step  # noqa: E402
from benchmarks.tables import markdown  # noqa: E402

GPUS = 8
RECORDS = 1440


def gpu_records(node: int, records: int = RECORDS) -> str:
    """Return a node's GPU records, a day's by default."""
    minute = [
        "".join(
            f"[{gpu}] NVIDIA H100 80GB HBM3 | {55 + (node + gpu + n) % 9}'C, {90 + (gpu + n) % 9:3d} %"
            f" | 71204 / 81559 MB |\n"
            for gpu in range(GPUS)
        )
        for n in range(9)
    ]
    return "".join(minute[n % 9] for n in range(records))


def gpu_stream(node: int, records: int = RECORDS) -> str:
    """Return the same in the agent's machine-readable form."""
    lines = []
    for n in range(9):
        devices = [
            {
                **{"index": gpu, "name": "NVIDIA H100 80GB HBM3", "celsius": 55 + (node + gpu + n) % 9},
                **{"percent": 90 + (gpu + n) % 9, "used": 71204 << 20, "total": 81559 << 20},
                **{"watts": 640.5 + n, "watts_limit": 700.0, "clocks": {"sm": 1755, "memory": 2619}},
                **{"throttled": [], "ecc": {"corrected": 0, "uncorrected": 0}, "xids": []},
                "processes": {str(40_000 + gpu): 71000 << 20},
            }
            for gpu in range(GPUS)
        ]
        ranks = {str(node * GPUS + gpu): 9 << 30 for gpu in range(GPUS)}
        lines.append(
            json.dumps({"node": f"n{node:04d}", "disk_free": 1 << 40, "ranks": ranks, "devices": devices})[1:]
        )
    return "".join(f'{{"time": {1.79e9 + 60 * n}, {lines[n % 9]}\n' for n in range(records))


def make(folder: Path, nodes: int, steps: int, *, streams: bool = True, records: int = RECORDS) -> int:
    """Write the files of a job; return their size in bytes."""
    for node in range(nodes):
        name = f"n{node:04d}"
        lines = [
            f"[Rank {node * GPUS + gpu}] (after 10 iterations) memory (MB) | allocated: 40000.0 |"
            f" max allocated: 61000.5 | reserved: 70000.0 | max reserved: 70000.0\n"
            for gpu in range(GPUS)
        ]
        if node == nodes - 1:
            lines += [step(number) for number in range(1, steps + 1)]
        (folder / f"{name}.out").write_text("".join(lines))
        (folder / f"{name}.err").write_text("  warnings.warn(\n" * 300)
        (folder / f"{name}.gpu").write_text(gpu_records(node, records))
        if streams:
            (folder / f"{name}.gpu.jsonl").write_text(gpu_stream(node, records))
    return sum(file.stat().st_size for file in folder.iterdir())


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument(
        "--lines-only", action="store_true", help="no records for programs, as FASOP's layout"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        logs, page = Path(folder, "logs"), Path(folder, "page.html")
        logs.mkdir()
        size = make(logs, options.nodes, options.steps, streams=not options.lines_only)
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "rdm_log.report.write", str(logs), "--output", str(page)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "trainer")},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        wall = time.monotonic() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows = [
            ["nodes", "GPUs", "steps", "files, MB", "CPU s", "wall s", "peak MiB", "page, MB"],
            [
                f"{options.nodes:,}",
                f"{options.nodes * GPUS:,}",
                f"{options.steps:,}",
                f"{size / 1e6:,.0f}",
                f"{used.ru_utime + used.ru_stime:.1f}",
                f"{wall:.1f}",
                f"{used.ru_maxrss / 1024:,.0f}",
                f"{page.stat().st_size / 1e6:.1f}",
            ],
        ]
    print(f"{os.cpu_count()} cores, {platform.machine()}, CPython {platform.python_version()}\n")
    print(markdown(rows))


if __name__ == "__main__":
    main()
