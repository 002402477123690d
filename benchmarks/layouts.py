# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast layouts are searched, and how much better exact cuts are than FASOP's heuristic.

Run `python benchmarks/layouts.py`; it prints two tables. Times are CPU seconds of one process. `heuristic`
evaluates every layout as FASOP does, on every placement that it tries; `best` and `best ten` search the exact
optimum within memory and leave out what cannot win. Quality is measured on every layout, without regard to
memory, as FASOP's heuristic has none: a cut is proved when no other can be faster.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

from benchmarks.tables import markdown  # noqa: E402
from rdm_planner.fasop.model import FasopModel, rotations  # noqa: E402
from rdm_planner.fasop.shapes import CASES  # noqa: E402
from rdm_planner.partition import best_cut  # noqa: E402
from rdm_planner.search import search  # noqa: E402


def models(case: str, *, within_memory: bool) -> list[FasopModel]:
    """Return a case's models, one for each placement that FASOP tries."""
    shape, nodes = CASES[case]
    return [FasopModel(shape, order, False, within_memory) for order in rotations(nodes)]


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return what a call takes."""
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
    return [case, *(f"{seconds:.3f}" for seconds in times)]


def quality(case: str) -> list[str]:
    """Return a row of the second table."""
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
    cases = parser.parse_args().cases
    print(markdown([["case", "heuristic s", "best s", "best ten s"], *map(speed, cases)]))
    print()
    head = ["case", "layouts", "faster", "mean gain", "largest gain", "proved"]
    print(markdown([head, *map(quality, cases)]))


if __name__ == "__main__":
    main()
