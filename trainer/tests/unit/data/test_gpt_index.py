# SPDX-License-Identifier: GPL-3.0-or-later
"""GPT's index maps, compared with a slow computation from the description and with megatron-core's helper."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_core.errors import TrainerError
from rdm_trainer.data.datasets import GPTDataset
from rdm_trainer.data.index_maps.gpt import GPTIndex, build, epochs_needed, load_or_build, map_paths
from rdm_trainer.data.index_maps.maker import MapMaker
from rdm_trainer.data.indexed_dataset import IndexedDataset, IndexedWriter


def described(sizes: list[int], documents: list[int], n: int, s: int, seed: int) -> tuple[Any, Any, Any]:
    """The maps, one step at a time as the description has them."""
    t = sum(sizes[d] for d in documents)
    e = 1
    while (e * t - 1) // s < n:
        e += 1
    separate = False
    n1 = 0
    if e > 1:
        n1 = ((e - 1) * t - 1) // s
        separate = (n - n1) < int(0.8 * ((t - 1) // s))
    random = np.random.RandomState(seed)
    first = np.array(documents * (e - 1 if separate else e), np.int32)
    random.shuffle(first)
    parts = [first]
    if separate:
        last = np.array(documents, np.int32)
        random.shuffle(last)
        parts.append(last)
    doc_idx = np.concatenate(parts)

    rows, position, offset = [(0, 0)], 0, 0
    for _ in range((e * t - 1) // s):
        left = s
        # The next sample begins at the token that is the last label of this one.
        while left:
            rest = sizes[doc_idx[position]] - offset
            if rest > left:
                offset += left
                left = 0
            else:
                left -= rest
                position, offset = position + 1, 0
        while offset >= sizes[doc_idx[position]]:
            position, offset = position + 1, 0
        rows.append((position, offset))
    total = len(rows) - 1
    cut = n1 if separate else total
    a, b = np.arange(cut, dtype=np.uint32), np.arange(cut, total, dtype=np.uint32)
    random.shuffle(a)
    if cut != total:
        random.shuffle(b)
    return doc_idx, np.array(rows, np.int32), np.concatenate((a, b))


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(any),
    n=st.integers(1, 60),
    s=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
@settings(max_examples=300)
def test_maps_are_those_of_the_description(
    sizes: list[int], n: int, s: int, seed: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(sizes) - 1))
    documents = list(range(first, len(sizes)))
    if not any(sizes[first:]):
        return
    index = build(np.array(sizes, np.int32), np.array(documents, np.int32), n, s, seed)
    expected = described(sizes, documents, n, s, seed)
    for ours, theirs in zip((index.doc_idx, index.sample_idx, index.shuffle_idx), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype
    assert len(index) >= n


@pytest.mark.parametrize(("n", "separate"), [(10 + 7, True), (10 + 8, False), (10, False), (20, False)])
def test_short_last_epoch_is_shuffled_separately(n: int, separate: bool) -> None:
    # 101 tokens make ten samples of 10 per epoch; a last epoch with fewer than 8 is shuffled separately.
    sizes = np.full(101, 1, np.int32)
    index = build(sizes, np.arange(101, dtype=np.int32), n, 10, 1)
    is_separate = sorted(index.doc_idx[:101].tolist()) == list(range(101)) and len(index.doc_idx) == 202
    assert is_separate == separate or len(index.doc_idx) == 101
    assert (len(index.doc_idx) == 202) == (n > 10)
    if n > 10:
        assert (sorted(index.shuffle_idx[:10].tolist()) == list(range(10))) == separate


def test_megatrons_helper_agrees() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import helpers_cpp
    random = np.random.default_rng(0)
    for _ in range(30):
        sizes = random.integers(1, 50, 40).astype(np.int32)
        documents = np.arange(40, dtype=np.int32)
        s, n = int(random.integers(1, 60)), int(random.integers(1, 400))
        index = build(sizes, documents, n, s, 7)
        tokens = int(sizes.sum())
        epochs = epochs_needed(tokens, s, n)
        theirs = helpers_cpp.build_sample_idx_int32(sizes, index.doc_idx, s, epochs, tokens, True, 1)
        np.testing.assert_array_equal(index.sample_idx, theirs)


@given(tokens=st.integers(1, 10**9), s=st.integers(1, 10**5), n=st.integers(0, 10**8))
def test_epochs_are_the_fewest(tokens: int, s: int, n: int) -> None:
    epochs = epochs_needed(tokens, s, n)
    assert (epochs * tokens - 1) // s >= n
    assert epochs == 1 or ((epochs - 1) * tokens - 1) // s < n


def test_names_are_megatrons(tmp_path: Path) -> None:
    names = [p.name for p in map_paths(tmp_path / "my-gpt2_text_document", "train", 1600, 1024, 1234)]
    stem = "my-gpt2_text_document_train_indexmap_1600ns_1024sl_1234s"
    assert names == [f"{stem}_doc_idx.npy", f"{stem}_sample_idx.npy", f"{stem}_shuffle_idx.npy"]


@pytest.fixture
def data(tmp_path: Path) -> IndexedDataset:
    random = np.random.default_rng(3)
    with IndexedWriter(tmp_path / "d", np.uint16) as writer:
        for _ in range(30):
            writer.add(random.integers(0, 1000, random.integers(1, 20)))
            writer.end_document()
    return IndexedDataset(tmp_path / "d")


def open_maps(data: IndexedDataset, *, is_writer: bool = True) -> GPTIndex:
    documents = np.arange(2, 25, dtype=np.int32)
    return load_or_build(
        data.prefix, "train", data.sizes, documents, 50, 8, 5,
        directory=None, maps=MapMaker(leads=lambda _: is_writer),
    )  # fmt: skip


def test_existing_maps_are_loaded_and_not_changed(data: IndexedDataset) -> None:
    expected = described(data.sizes.tolist(), list(range(2, 25)), 50, 8, 5)
    files = map_paths(data.prefix, "train", 50, 8, 5)
    for path, array in zip(files, expected, strict=True):
        np.save(path, array)
    before = [path.stat().st_mtime_ns for path in files]
    index = open_maps(data)
    assert isinstance(index.sample_idx, np.memmap)
    for ours, theirs in zip((index.doc_idx, index.sample_idx, index.shuffle_idx), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [path.stat().st_mtime_ns for path in files] == before


def test_only_the_writer_writes(data: IndexedDataset) -> None:
    with pytest.raises(TrainerError, match="is missing or damaged"):
        open_maps(data, is_writer=False)
    open_maps(data, is_writer=True)
    open_maps(data, is_writer=False)
    assert not list(data.prefix.parent.glob(".*"))


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("how", ["other", "short", "cut"])
def test_a_map_that_does_not_fit_is_refused(data: IndexedDataset, which: int, how: str) -> None:
    open_maps(data)
    path = map_paths(data.prefix, "train", 50, 8, 5)[which]
    if how == "cut":
        path.write_bytes(path.read_bytes()[:100])
    else:
        array = np.load(path)
        if how == "short":
            array = array[:-1]
        else:
            array[1] = array[1] + 1
        np.save(path, array)
    with pytest.raises(TrainerError, match=path.name):
        open_maps(data)


def test_samples_are_runs_of_the_shuffled_documents(data: IndexedDataset) -> None:
    index = open_maps(data)
    text = np.concatenate([data[d] for d in index.doc_idx])
    dataset = GPTDataset(data, index, 8, 1000)
    for number in range(len(dataset)):
        (tokens,) = dataset[number]
        begin = int(index.shuffle_idx[number]) * 8
        np.testing.assert_array_equal(tokens, text[begin : begin + 9])


def test_no_tokens_is_one_sentence() -> None:
    with pytest.raises(TrainerError, match="no token"):
        build(np.zeros(3, np.int32), np.arange(3, dtype=np.int32), 1, 4, 0)
