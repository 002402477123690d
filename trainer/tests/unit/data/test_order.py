# SPDX-License-Identifier: GPL-3.0-or-later
"""Splits, blends and samplers: which sample comes when, and on which rank."""

from __future__ import annotations

import itertools
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_core.batch_ramp import BatchRamp
from rdm_core.errors import TrainerError
from rdm_trainer.data.index_maps.blend import blend, load_or_build, normalise
from rdm_trainer.data.index_maps.maker import MapMaker
from rdm_trainer.data.sampler import Sampler
from rdm_trainer.data.splits import bounds, evaluations, share


@pytest.mark.parametrize(
    ("split", "size", "expected"),
    [
        ("969,30,1", 1000, (0, 969, 999, 1000)),
        ("969, 30, 1", 20, (0, 19, 20, 20)),
        ("98,2,0", 100, (0, 98, 100, 100)),
        ("1", 7, (0, 7, 7, 7)),
        ("1/1/1", 10, (0, 4, 7, 10)),
        # 1.5 and 1.5 round to 2 each: the surplus of one is subtracted from every later bound.
        ("1,1", 3, (0, 1, 3, 3)),
        ("5,3,2", 0, (0, 0, 0, 0)),
    ],
)
def test_splits(split: str, size: int, expected: tuple[int, ...]) -> None:
    assert bounds(split, size) == expected


@given(
    weights=st.lists(st.floats(0, 1e6), min_size=1, max_size=3).filter(lambda w: sum(w) > 1e-3),
    size=st.integers(0, 10**7),
)
def test_splits_cover_all(weights: list[float], size: int) -> None:
    cuts = bounds(",".join(map(str, weights)), size)
    assert cuts[0] == 0
    assert cuts[3] == size
    total = sum(weights)
    padded = weights + [0.0] * (3 - len(weights))
    for number, weight in enumerate(padded):
        assert abs((cuts[number + 1] - cuts[number]) - weight / total * size) <= 2.5


@pytest.mark.parametrize("split", ["", "a,b", "0,0,0", "1,2,3,4", "-1,2", "nan,1", "inf,1"])
def test_invalid_split_is_refused(split: str) -> None:
    with pytest.raises(TrainerError, match=r"data\.split is"):
        bounds(split, 10)


def test_shares_have_headroom() -> None:
    assert share(1000, [0.25, 0.75]) == [math.ceil(250 * 1.005), math.ceil(750 * 1.005)]


def test_evaluations() -> None:
    assert evaluations(100, 30, 5) == (20, 5)
    assert evaluations(100, 0, 5) == (0, 0)


def greedy(weights: list[float], size: int) -> tuple[list[int], list[int]]:
    """Give one sample at a time to the data set that lacks most."""
    counts, chosen, numbers = [0] * len(weights), [], []
    for i in range(size):
        lacks = [weight * max(i, 1) - count for weight, count in zip(weights, counts, strict=True)]
        best = lacks.index(max(lacks))
        chosen.append(best)
        numbers.append(counts[best])
        counts[best] += 1
    return chosen, numbers


@given(
    weights=st.lists(st.one_of(st.integers(1, 9), st.floats(1e-4, 1)), min_size=1, max_size=8),
    size=st.integers(0, 6000),
)
@settings(max_examples=25)
def test_blend_is_greedy(weights: list[float], size: int) -> None:
    shares = normalise(weights)
    assert math.isclose(sum(shares), 1)
    chosen, numbers = blend(shares, size)
    assert (chosen.tolist(), numbers.tolist()) == greedy(shares, size)


def test_megatrons_helper_blends_the_same() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import helpers_cpp
    for weights in ([0.3, 0.7], [0.1, 0.2, 0.7], [1 / 3] * 3, normalise([5, 1, 1, 0.01, 3])):
        size = 50_000
        theirs = np.zeros(size, np.int16), np.zeros(size, np.int64)
        helpers_cpp.build_blending_indices(*theirs, np.array(weights), len(weights), size, False)
        ours = blend(weights, size)
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_array_equal(ours[1], theirs[1])


def test_a_blend_is_kept(tmp_path: Path) -> None:
    weights = normalise([3, 1])
    made = load_or_build(weights, 100, tmp_path, MapMaker())
    assert len(list(tmp_path.iterdir())) == 2
    # A process that does not write reads the existing map.
    read = load_or_build(weights, 100, tmp_path, MapMaker(leads=lambda _: False))
    for ours, kept, computed in zip(made, read, blend(weights, 100), strict=True):
        assert isinstance(kept, np.memmap)
        np.testing.assert_array_equal(ours, computed)
        np.testing.assert_array_equal(kept, computed)
    (tmp_path / "a file").touch()
    for ours, computed in zip(
        load_or_build(weights, 9, tmp_path / "a file", MapMaker()), blend(weights, 9), strict=True
    ):
        np.testing.assert_array_equal(ours, computed)


layouts = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))


@given(
    layout=layouts,
    samples=st.integers(0, 200),
    cyclic=st.booleans(),
    steps=st.integers(0, 20),
    seed=st.integers(0, 99),
)
def test_the_order_does_not_depend_on_the_layout(
    layout: tuple[int, int, int], samples: int, cyclic: bool, steps: int, seed: int
) -> None:
    micro, ranks, accumulation = layout
    size = micro * ranks * accumulation
    batches = BatchRamp.constant(size)

    def take(micro: int, ranks: int, consumed: int, steps: int) -> list[list[int]]:
        """Return the samples of each global batch, of all ranks together."""
        iterators = [
            Sampler(samples, batches, micro, rank, ranks, cyclic, seed).micro_batches(consumed)
            for rank in range(ranks)
        ]
        taken = []
        for _ in range(steps):
            rows: list[int] = []
            for _ in range(size // (micro * ranks)):
                for iterator in iterators:
                    part = next(iterator, None)
                    rows += [] if part is None else part.tolist()
            taken.append(rows)
        return taken

    whole = take(size, 1, 0, steps + 3)
    assert take(micro, ranks, 0, steps + 3) == whole
    assert take(micro, ranks, steps * size, 3) == whole[steps:]
    numbers = [n for rows in whole for n in rows]
    if not cyclic:
        assert numbers == list(range(min(steps + 3, samples // size) * size))
    elif samples:
        for epoch in range(len(numbers) // samples):
            assert sorted(numbers[epoch * samples : (epoch + 1) * samples]) == list(range(samples))


@given(
    samples=st.integers(0, 60),
    cyclic=st.booleans(),
    consumed=st.integers(0, 100),
    size=st.integers(1, 9),
)
def test_another_batch_size_continues_at_the_next_sample(
    samples: int, cyclic: bool, consumed: int, size: int
) -> None:
    def take(size: int, consumed: int, batches: int) -> list[int]:
        iterator = Sampler(samples, BatchRamp.constant(size), size, 0, 1, cyclic, 7).micro_batches(consumed)
        return [n for part in itertools.islice(iterator, batches) for n in part.tolist()]

    rest = take(1, 0, consumed + 5 * size)[consumed:]
    assert take(size, consumed, 5) == rest[: len(rest) // size * size]


@pytest.mark.parametrize("cyclic", [False, True])
def test_batch_ramp_takes_the_same_samples_in_the_same_order(cyclic: bool) -> None:
    def take(batches: BatchRamp, consumed: int) -> list[list[int]]:
        parts = Sampler(32, batches, 2, 0, 1, cyclic, 7).micro_batches(consumed)
        return [part.tolist() for part in itertools.islice(parts, 16 - consumed // 2)]

    ramp = BatchRamp(2, 2, 12, 6)
    assert take(ramp, 0) == take(BatchRamp.constant(2), 0)
    # 2, 2, 2, 4, 4: resumed within the growth.
    assert take(ramp, 6) == take(ramp, 0)[3:]
