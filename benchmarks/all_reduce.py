# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the all-reduce of `rdm-provision verify --collective` with NCCL's own speed on this host's GPUs.

Run `python benchmarks/all_reduce.py` where `rdm_trainer` is installed; it prints a table for
docs/training-performance.md. Each size is reduced in one process group, in turns: by the program that
`verify --collective` starts, by a plain loop between CUDA events, and by a CUDA graph of as many all-reduces,
in which NCCL waits for no host. Bus bandwidth is that of nccl-tests: bytes / s x 2 (ranks - 1) / ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

from benchmarks.layout_accuracy import devices, launch  # noqa: E402
from benchmarks.tables import markdown  # noqa: E402

TIMES = 20
WAYS = ("verify", "loop", "graph")


def measure(rounds: int, most: int) -> list[dict[str, Any]]:
    """Return each size's seconds of an all-reduce in every round, by way; every rank calls this."""
    import torch
    import torch.distributed as dist

    from rdm_trainer.tools.all_reduce import Bench, join, sizes

    device = join(60.0)
    bench = Bench(device)

    def timed(work: Callable[[], object]) -> float:
        """Return the seconds between two events, of the slowest rank."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        begin.record()
        work()
        end.record()
        end.synchronize()
        seconds = torch.tensor(begin.elapsed_time(end) / 1e3, device=device)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return float(seconds) / TIMES

    found = []
    for size in sizes(most):
        tensor = torch.zeros(size // 4, device=device)

        def loop(tensor: torch.Tensor = tensor) -> None:
            for _ in range(TIMES):
                dist.all_reduce(tensor)

        loop()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads of torch watch the collectives meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            loop()
        graph.replay()
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            seconds["verify"].append(bench.reduce(size)["seconds"])
            seconds["loop"].append(timed(loop))
            seconds["graph"].append(timed(graph.replay))
        found.append({"bytes": size, "seconds": seconds})
    dist.barrier()
    # A communicator cannot end before the graphs that have its kernels.
    del graph
    dist.destroy_process_group()
    return found


def table(found: list[dict[str, Any]], ranks: int) -> str:
    """Return the bus bandwidths and their ratios as Markdown."""
    rows = [["MiB", *(f"{way}, GB/s" for way in WAYS), "verify / loop", "verify / graph"]]
    for one in found:
        rates = [
            one["bytes"] / statistics.median(one["seconds"][way]) / 1e9 * 2 * (ranks - 1) / ranks
            for way in WAYS
        ]
        ratios = [rates[0] / rate for rate in rates[1:]]
        rows.append(
            [
                str(one["bytes"] >> 20),
                *(f"{rate:.1f}" for rate in rates),
                *(f"{ratio:.3f}" for ratio in ratios),
            ]
        )
    return markdown(rows, words=0)


def unfit(ranks: int, gpus: int) -> str | None:
    """Return why a host with so many GPUs cannot measure ranks, if so."""
    if ranks < 2:
        return "it takes at least two GPUs"
    return f"--ranks {ranks}: this host has {gpus} GPUs" if ranks > gpus else None


def main() -> int:
    """Measure as the command line says; return an exit code."""
    from rdm_trainer.tools.all_reduce import parse_size

    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, help="GPUs; all by default")
    parser.add_argument("--max-size", type=parse_size, default="1G", help="of the largest tensor")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.result:
        found = measure(args.rounds, args.max_size)
        if os.environ["RANK"] == "0":
            args.result.write_text(json.dumps(found))
        return 0
    gpus = devices()
    ranks = args.ranks or gpus
    if (reason := unfit(ranks, gpus)) is not None:
        parser.error(reason)
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        options = ["--max-size", str(args.max_size), "--rounds", str(args.rounds)]
        launch(ranks, [__file__, *options, "--result", str(result)])
        found = json.loads(result.read_text())
    print(f"{ranks} ranks, {json.dumps(found)}\n\n{table(found, ranks)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
