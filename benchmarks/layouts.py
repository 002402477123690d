# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how fast layouts are searched, and how much better exact cuts are than FASOP's heuristic.

Run `python benchmarks/layouts.py`; it prints four tables. Times are CPU seconds of one process. `heuristic`
evaluates every layout as FASOP does, on every placement that it tries. `best` and `best ten` search the exact
optimum within memory and skip what cannot win. `upstream` is the time of FASOP's program on another machine
(1/100 of it is the aim). The second table searches a GPT of 175 billion parameters on growing clusters of two
kinds of nodes, as `rdm-trainer tune` does. The third compares the orders of nodes that are tried with all
distinct ones. Quality is measured on every layout without a limit of memory, which FASOP's heuristic does not
know: a cut is proved if no other can be faster.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

from benchmarks.tables import markdown  # noqa: E402
from rdm_core import config as configuration  # noqa: E402
from rdm_planner.fasop.model import FasopModel, rotations  # noqa: E402
from rdm_planner.fasop.shapes import CASES  # noqa: E402
from rdm_planner.job import Job, published_peaks  # noqa: E402
from rdm_planner.nodes import NodeKind, orders, tried_orders  # noqa: E402
from rdm_planner.partition import best_cut  # noqa: E402
from rdm_planner.search import Found, search  # noqa: E402
from rdm_planner.search_space import SearchSpace  # noqa: E402
from rdm_planner.trainer_model import TrainerModel  # noqa: E402
from rdm_trainer.engine_step import engine_step  # noqa: E402

UPSTREAM = {"gpt2XL": 5.0, "gpt2XL-heterogeneous": 31.4, "bert": 2.3, "bert-heterogeneous": 8.6, "T5": 29.0}
GPT_175B = [
    "model.layers=96",
    "model.hidden_size=12288",
    "model.attention_heads=96",
    "model.seq_length=2048",
    "optimisation.global_batch_size=1536",
]
KINDS = (
    NodeKind("H100", gpus=8, inter=400e9, intra=3600e9, memory_gib=79.1),
    NodeKind("A100-80", gpus=8, inter=200e9, intra=2400e9, memory_gib=79.2),
)
UNLIKE = (
    NodeKind("A10", gpus=4, inter=100e9, intra=200e9, memory_gib=22.2),
    NodeKind("A100-80", gpus=4, inter=100e9, intra=2400e9, memory_gib=79.2),
)
PEAKS = {"H100": 989.4, "A100-80": 312.0, "A10": 125.0}


def models(case: str, *, within_memory: bool) -> list[FasopModel]:
    """Return a case's models, one for each placement that FASOP tries."""
    shape, nodes = CASES[case]
    return [FasopModel(shape, order, False, within_memory) for order in rotations(nodes)]


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def speed(case: str) -> list[str]:
    """Return a row of the first table."""

    def heuristic() -> None:
        for model in models(case, within_memory=True):
            for layout in model.layouts():
                model.estimate(layout)

    times = [
        cpu_seconds(heuristic),
        cpu_seconds(lambda: search(models(case, within_memory=True), keep=1)),
        cpu_seconds(lambda: search(models(case, within_memory=True), keep=10)),
    ]
    return [case, *(f"{seconds:.3f}" for seconds in times), f"{UPSTREAM[case]:.1f}"]


def scale(nodes: int) -> list[str]:
    """Return a row of the second table, with half of the nodes of each kind."""
    tried = tried_orders(halves(KINDS, nodes))
    found, seconds = searched("gpt-1.3b", GPT_175B, tried)
    best = f"{found.best[0].seconds:.2f}" if found.best else "fits nowhere"
    return [str(nodes), str(nodes * 8), str(len(tried)), str(found.layouts), f"{seconds:.1f}", best]


def every_order(name: str, nodes: int) -> Iterable[list[str]]:
    """Yield two rows of the third table: for the orders that are tried, and for all."""
    given = halves(UNLIKE, nodes)
    rotated = [(*given[at:], *given[:at]) for at in range(nodes)]
    for tried in rotated, list(orders(given)):
        found, seconds = searched(name, ["optimisation.global_batch_size=120"], tried)
        cells = str(len(tried)), str(found.solved), f"{seconds:.1f}", f"{found.best[0].seconds:.4f}"
        yield [name, str(nodes), *cells]


def halves(kinds: Sequence[NodeKind], nodes: int) -> list[NodeKind]:
    """Return nodes, half of each kind."""
    return [kinds[0]] * (nodes // 2) + [kinds[1]] * (nodes - nodes // 2)


def searched(name: str, overrides: list[str], tried: list[tuple[NodeKind, ...]]) -> tuple[Found, float]:
    """Return the result of a search over some orders of nodes, and its CPU seconds."""
    config = configuration.load(ROOT / "trainer" / "configs" / f"{name}.yaml", overrides)
    begin = time.process_time()
    job = Job(SearchSpace(config), published_peaks(config, tried[0], PEAKS, 0.5), engine_step)
    found = search(
        [TrainerModel(job, order) for order in tried],
        keep=5,
        alike=lambda one: (one.tensor, one.data, one.pipeline),
    )
    return found, time.process_time() - begin


def quality(case: str) -> list[str]:
    """Return a row of the fourth table."""
    gains, proved = [], 0
    for model in models(case, within_memory=False):
        for layout in model.layouts():
            problem = model.problem(layout)
            heuristic = problem.seconds(model.heuristic(layout)[0])
            cut = best_cut(problem, tries=model.tries(layout))
            assert cut is not None
            assert cut.seconds <= heuristic
            gains.append(1 - cut.seconds / heuristic)
            proved += cut.is_proved
    faster = sum(gain > 1e-9 for gain in gains)
    return [
        case,
        str(len(gains)),
        str(faster),
        f"{sum(gains) / len(gains):.1%}",
        f"{max(gains):.1%}",
        str(proved),
    ]


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--nodes", nargs="*", type=int, default=[16, 32, 64, 128, 256, 512, 1024])
    parser.add_argument("--orders", nargs="*", type=int, default=[10], metavar="NODES")
    given = parser.parse_args()
    cases = given.cases
    print(markdown([["case", "heuristic s", "best s", "best ten s", "upstream s"], *map(speed, cases)]))
    print()
    head = ["nodes", "GPUs", "orders", "layouts", "search s", "best step s"]
    print(markdown([head, *map(scale, given.nodes)]))
    print()
    rows = itertools.chain.from_iterable(
        itertools.starmap(every_order, itertools.product(("gpt2-xl", "llama3-8b"), given.orders))
    )
    print(markdown([["job", "nodes", "orders", "cuts searched", "CPU s", "best step s"], *rows]))
    print()
    head = ["case", "layouts", "faster", "mean gain", "largest gain", "proved"]
    print(markdown([head, *map(quality, cases)]))


if __name__ == "__main__":
    main()
