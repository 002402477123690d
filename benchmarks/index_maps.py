# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the speed of building index maps of T5 and of mixtures with Megatron's helper and plain Python.

Run `trainer/.venv/bin/python benchmarks/index_maps.py`; it prints a table for docs/performance.md. All ways
must make the same map, on one core. Times are CPU times of the process, which vary less than wall times on a
busy machine; the best of several alternating rounds. Plain Python is a loop over the samples that finds a
sample's end by bisection, as rdm-trainer did before its loops were compiled. The time to compile, once per
process that makes a map, is printed below the table.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
import warnings
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

import numpy as np  # noqa: E402

from benchmarks.tables import markdown  # noqa: E402
from rdm_trainer.data.index_maps import t5  # noqa: E402
from rdm_trainer.data.index_maps.blend import blend, normalise  # noqa: E402
from rdm_trainer.data.index_maps.mersenne import mt19937, mt19937_64  # noqa: E402

LENGTH, SHORT, SEED = 510, 0.1, 1234
# Megatron's bound on samples, which no map here reaches.
NO_BOUND = 2**31 - 2


def corpus(documents: int) -> tuple[Any, Any]:
    """Return the lengths of sentences in tokens, and where each document begins."""
    random = np.random.default_rng(0)
    ends = np.concatenate(([0], np.cumsum(random.integers(1, 60, documents))))
    return random.integers(5, 60, ends[-1]).astype(np.int32), ends


def plain_t5(sizes: Any, ends: Any, samples: int) -> Any:
    """Make the map of a T5 with a loop over the samples."""
    drawn = mt19937(SEED).randint(0, 2**32, size=2 * samples, dtype=np.uint32).astype(np.int64)
    ratio = round(1 / SHORT)
    targets = iter(np.where(drawn % ratio == 0, 2 + drawn % (LENGTH - 1), LENGTH).tolist())
    before = np.cumsum(sizes, dtype=np.int64)
    rows: list[tuple[int, int, int]] = []
    while len(rows) < samples:
        for first, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            reached = before[first:end].tolist()
            filled = reached[0] - int(sizes[first])
            sentence, last, wanted = 0, len(reached) - 1, next(targets)
            while sentence <= last:
                stop = bisect_left(reached, filled + wanted, sentence)
                if stop >= last - 1:
                    stop = last
                rows.append((first + sentence, first + stop + 1, wanted))
                filled, sentence, wanted = reached[stop], stop + 1, next(targets)
    order = list(range(len(rows)))
    for i, number in zip(
        range(len(rows) - 1, 0, -1), mt19937_64(SEED + 1, len(rows) - 1).tolist(), strict=True
    ):
        j = number % (i + 1)
        order[i], order[j] = order[j], order[i]
    return np.array(rows, np.uint32)[order]


def plain_blend(weights: list[float], size: int) -> Any:
    """Make the map of a mixture with a loop over the samples."""
    share, counts = np.array(weights), np.zeros(len(weights))
    chosen = np.empty(size, np.int16)
    for sample in range(size):
        best = int(np.argmax(share * max(sample, 1) - counts))
        counts[best] += 1
        chosen[sample] = best
    return chosen


def fastest(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the CPU seconds of each way; all must return the same."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        made = {}
        for name, way in ways.items():
            began = time.process_time()
            made[name] = way()
            best[name] = min(best.get(name, float("inf")), time.process_time() - began)
        one, *others = made.values()
        assert all(np.array_equal(one, other) for other in others), "the ways differ"
    return best


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    sizes, ends = corpus(args.documents)
    weights = normalise([5, 3, 1, 1, 0.5, 0.25])

    began = time.process_time()
    t5.build(*corpus(10), 10, LENGTH, SHORT, SEED)
    blend(weights, 10)
    compiling = time.process_time() - began

    cases: dict[str, dict[str, Callable[[], Any]]] = {
        f"a T5's map, {args.samples / 1e6:g} M samples of {len(sizes) / 1e6:.1f} M sentences": {
            "plain Python": lambda: plain_t5(sizes, ends, args.samples),
            "rdm-trainer": lambda: t5.build(sizes, ends, args.samples, LENGTH, SHORT, SEED),
        },
        f"a mixture of {len(weights)}, {args.samples / 1e6:g} M samples": {
            "plain Python": lambda: plain_blend(weights, args.samples),
            "rdm-trainer": lambda: blend(weights, args.samples)[0],
        },
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from megatron.core.datasets import helpers_cpp
    except ImportError:
        print("megatron-core is not installed: its helper is left out", file=sys.stderr)
    else:

        def megatrons_blend() -> Any:
            chosen, number = np.zeros(args.samples, np.int16), np.zeros(args.samples, np.int64)
            helpers_cpp.build_blending_indices(
                chosen, number, np.array(weights), len(weights), args.samples, False
            )
            return chosen

        first, second = cases.values()
        first["Megatron's helper"] = lambda: helpers_cpp.build_mapping(
            ends, sizes, NO_BOUND, args.samples, LENGTH, SHORT, SEED, False, 1
        )
        second["Megatron's helper"] = megatrons_blend

    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}\n")
    rows = []
    for name, ways in cases.items():
        times = fastest(ways, args.rounds)
        rows += [
            [name, way, f"{seconds:.3f}", f"{times['plain Python'] / seconds:.1f}"]
            for way, seconds in times.items()
        ]
    print(markdown([["map", "way", "CPU s", "ratio"], *rows], words=2))
    print(f"\nCompiling the loops: {compiling:.1f} CPU s, once in a process that makes a map.")


if __name__ == "__main__":
    main()
