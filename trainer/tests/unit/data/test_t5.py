# SPDX-License-Identifier: GPL-3.0-or-later
"""T5's map of sentences and its masking."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_core.errors import TrainerError
from rdm_trainer.data.datasets import T5Dataset
from rdm_trainer.data.index_maps import t5 as t5_index
from rdm_trainer.data.index_maps import windows
from rdm_trainer.data.index_maps.maker import MapMaker
from rdm_trainer.data.index_maps.mersenne import mt19937, mt19937_64
from rdm_trainer.data.indexed_dataset import IndexedDataset
from rdm_trainer.data.span_corruption import SpanCorruption


def test_generators_give_the_numbers_of_the_cpp_standard() -> None:
    # [rand.predef]: the 10000th number of a generator with the default seed.
    drawn = mt19937(5489).randint(0, 2**32, size=10_000, dtype=np.uint32)
    assert int(drawn[-1]) == 4123659995
    assert int(mt19937_64(5489, 10_000)[-1]) == 9981545732273789042
    assert mt19937_64(1, 0).tolist() == []
    np.testing.assert_array_equal(mt19937_64(9, 1000)[:7], mt19937_64(9, 7))


def described(
    sizes: list[int], ends: list[int], samples: int, length: int, probability: float, seed: int
) -> list[tuple[int, int, int]]:
    """Return the map, one sentence at a time, as the description has it."""
    ratio = round(1 / probability) if probability else 0
    draws = iter(mt19937(seed).randint(0, 2**32, size=100_000, dtype=np.uint32).tolist())

    def target() -> int:
        if not ratio:
            return length
        number = next(draws)
        return 2 + number % (length - 1) if number % ratio == 0 else length

    rows: list[tuple[int, int, int]] = []
    while len(rows) < samples:
        for first, last in itertools.pairwise(ends):
            sentences = range(first, last)
            if not sentences or (len(sentences) > 1 and any(sizes[s] > 512 for s in sentences)):
                continue
            begin, filled, wanted = first, 0, target()
            for sentence in sentences:
                filled += sizes[sentence]
                remain = last - sentence - 1
                if (filled >= wanted and remain > 1) or remain == 0:
                    rows.append((begin, sentence + 1, wanted))
                    begin, filled, wanted = sentence + 1, 0, target()
    order = list(range(len(rows)))
    numbers = iter(mt19937_64(seed + 1, len(rows)).tolist())
    for i in range(len(rows) - 1, 0, -1):
        j = next(numbers) % (i + 1)
        order[i], order[j] = order[j], order[i]
    return [rows[i] for i in order]


documents = st.lists(
    st.lists(st.sampled_from([0, 1, 3, 9, 30, 512, 513]), max_size=8), min_size=1, max_size=8
)


@given(
    documents,
    st.integers(1, 40),
    st.integers(3, 60),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.integers(0, 2**31 - 2),
)
def test_map_is_that_of_the_description(
    documents: list[list[int]], samples: int, length: int, probability: float, seed: int
) -> None:
    sizes = [size for document in documents for size in document]
    ends = np.cumsum([0, *map(len, documents)]).tolist()
    if not any(d and (len(d) == 1 or max(d) <= 512) for d in documents):
        with pytest.raises(TrainerError, match="no document gives a sample"):
            t5_index.build(np.array(sizes, np.int32), np.array(ends), samples, length, probability, seed)
        return
    table = t5_index.build(np.array(sizes, np.int32), np.array(ends), samples, length, probability, seed)
    assert table.dtype == np.uint32
    assert [tuple(row) for row in table.tolist()] == described(
        sizes, ends, samples, length, probability, seed
    )


def test_megatrons_helper_agrees() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import helpers_cpp
    random = np.random.default_rng(0)
    for probability in (0.1, 0.25):
        counts = random.integers(1, 30, 200)
        ends = np.concatenate(([0], np.cumsum(counts)))
        sizes = random.integers(1, 100, ends[-1]).astype(np.int32)
        sizes[random.integers(0, len(sizes), 20)] = 600
        ours = t5_index.build(sizes, ends[5:180], 5000, 126, probability, 1234)
        theirs = helpers_cpp.build_mapping(
            ends[5:180], sizes, 2**31 - 2, 5000, 126, probability, 1234, False, 1
        )
        np.testing.assert_array_equal(ours, theirs)


def test_name_is_megatrons(tmp_path: Path) -> None:
    path = t5_index.map_path(tmp_path / "bert_text_sentence", "train", 3200, 510, 0.1, 1234)
    assert path.name == "bert_text_sentence_train_indexmap_3200mns_510msl_0.10ssp_1234s.npy"


def open_map(data: IndexedDataset, ends: np.ndarray) -> np.ndarray:
    arguments = (10, 20, 0.1, 1)
    return MapMaker().table(
        "corpus",
        t5_index.map_path(data.prefix, "train", *arguments),
        lambda progress: t5_index.build(data.sizes, ends, *arguments, progress),
        lambda table: t5_index.fits(table, ends, 10, 20),
    )


def test_a_map_that_does_not_fit_is_refused(make_dataset: Callable[..., Path]) -> None:
    data = IndexedDataset(make_dataset("d", [[[1] * 5, [2] * 9], [[3] * 4, [4] * 4, [5] * 4, [6] * 9]]))
    open_map(data, data.document_index)
    with pytest.raises(TrainerError, match="does not fit the data"):
        open_map(data, data.document_index[:2])


def corruption(**changes: object) -> SpanCorruption:
    values: dict[str, object] = {
        "encoder_length": 100, "decoder_length": 60, "probability": 0.15, "mean_length": 3.0,
        "sentinels": range(1000, 1020), "begin": 901, "end": 902, "padding": 900,
    }  # fmt: skip
    return SpanCorruption(**{**values, **changes})  # type: ignore[arg-type]


@given(
    tokens=st.lists(st.integers(0, 899), max_size=120),
    decoder=st.integers(2, 60),
    sentinels=st.integers(1, 20),
    probability=st.floats(0.01, 0.9),
    mean=st.floats(1, 8),
    seed=st.integers(0, 99),
)
def test_encoder_and_decoder_tokens_make_up_the_text(
    tokens: list[int], decoder: int, sentinels: int, probability: float, mean: float, seed: int
) -> None:
    spans = corruption(
        decoder_length=decoder,
        sentinels=range(1000, 1000 + sentinels),
        probability=probability,
        mean_length=mean,
    )
    text = np.array(tokens, np.int64)
    source, shifted, target, mask = spans(text, np.random.RandomState(seed))
    assert (source.shape, shifted.shape, target.shape, mask.shape) == (
        (100,),
        (decoder,),
        (decoder,),
        (decoder,),
    )
    length = int(mask.sum())
    assert mask.tolist() == [1.0] * length + [0.0] * (decoder - length)
    assert target[length - 1] == 902
    assert shifted[0] == 901
    np.testing.assert_array_equal(shifted[1:length], target[: length - 1])
    assert set(target[length:].tolist()) <= {900}
    assert set(shifted[length:].tolist()) <= {900}
    # What each sentinel stands for, read from the labels.
    stands: dict[int, list[int]] = {}
    for token in target[: length - 1].tolist():
        if token >= 1000:
            stands[token] = []
        else:
            stands[max(stands)].append(token)
    assert list(stands) == list(range(1000, 1000 + len(stands)))
    assert all(stands.values())
    restored: list[int] = []
    for token in source.tolist():
        restored += stands[token] if token >= 1000 else [token] if token != 900 else []
    assert restored == tokens[:100]


def test_requested_share_of_tokens_is_masked() -> None:
    spans = corruption()
    _, _, target, mask = spans(np.arange(100), np.random.RandomState(0))
    labels = target[mask > 0][:-1]
    assert (labels < 1000).sum() == 15
    assert (labels >= 1000).sum() == 5


def test_a_sample_depends_on_its_number_alone(make_dataset: Callable[..., Path]) -> None:
    data = IndexedDataset(
        make_dataset("d", [[list(range(i, i + 30)), list(range(i, i + 8))] for i in range(9)])
    )
    table = open_map(data, data.document_index)
    one, two = (T5Dataset(data, table, corruption(encoder_length=22), 1, 1000) for _ in range(2))
    for number in (5, 0, 5):
        for a, b in zip(one[number], two[number], strict=True):
            np.testing.assert_array_equal(a, b)
    assert any((one[0][0] != one[1][0]).tolist())


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    samples=st.integers(1, 60),
    length=st.integers(4, 12),
    probability=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 99),
)
def test_windows_take_every_token_of_a_document_as_often(
    lengths: list[int], samples: int, length: int, probability: float, seed: int
) -> None:
    sizes, sequences = np.array([9, *lengths, 7], np.int32), np.arange(1, len(lengths) + 1)
    if max(lengths) < 2:
        with pytest.raises(TrainerError, match="no document has 2 tokens"):
            windows.build(sizes, sequences, samples, length, probability, seed)
        return
    table = windows.build(sizes, sequences, samples, length, probability, seed)
    assert len(table) >= samples
    assert (table[:, 2] >= 2).all()
    assert (table[:, 2] <= length).all()
    for number, tokens in enumerate(lengths, 1):
        taken = np.zeros(tokens, np.int64)
        for _, begin, count in table[table[:, 0] == number].tolist():
            taken[begin : begin + count] += 1
        # A single token at the end makes no sample.
        usable = tokens - (tokens % length == 1)
        assert set(taken[:usable].tolist()) <= {taken[:usable].max(initial=0)}
        assert usable == 0 or taken[0] > 0
    np.testing.assert_array_equal(table, windows.build(sizes, sequences, samples, length, probability, seed))
