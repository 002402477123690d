# SPDX-License-Identifier: GPL-3.0-or-later
"""Data sets, compared byte by byte with the published description, and with megatron-core's code."""

from __future__ import annotations

import contextlib
import itertools
import resource
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_core.errors import FAILED, TrainerError
from rdm_trainer.data.indexed_dataset import DTYPES, IndexedDataset, IndexedWriter, best_dtype, merge

DOCUMENTS = [[[1, 2, 3], [4]], [], [[5, 65499]]]


@pytest.fixture(scope="module")
def megatron() -> Any:
    """megatron-core's own reader and writer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import indexed_dataset
    return indexed_dataset


def described(sizes: list[int], ends: list[int], code: int, itemsize: int) -> bytes:
    """An index built from the published description alone."""
    pointers = [sum(sizes[:i]) * itemsize for i in range(len(sizes))]
    return (
        bytes.fromhex("4d4d494449445800 00")
        + struct.pack("<Q", 1)
        + struct.pack("<B", code)
        + struct.pack("<QQ", len(sizes), len(ends))
        + struct.pack(f"<{len(sizes)}i", *sizes)
        + struct.pack(f"<{len(sizes)}q", *pointers)
        + struct.pack(f"<{len(ends)}q", *ends)
    )


@pytest.mark.parametrize(
    ("dtype", "code", "form"), [(np.uint16, 8, "H"), (np.int32, 4, "i"), (np.int64, 5, "q")]
)
def test_bytes_are_those_of_the_description(
    make_dataset: Callable[..., Path], dtype: type, code: int, form: str
) -> None:
    prefix = make_dataset("d", DOCUMENTS, dtype)
    tokens = [1, 2, 3, 4, 5, 65499]
    assert prefix.with_suffix(".bin").read_bytes() == struct.pack(f"<6{form}", *tokens)
    expected = described([3, 1, 2], [0, 2, 2, 3], code, np.dtype(dtype).itemsize)
    assert prefix.with_suffix(".idx").read_bytes() == expected


def test_data_set_of_the_description_is_read(tmp_path: Path) -> None:
    (tmp_path / "d.bin").write_bytes(struct.pack("<6H", 1, 2, 3, 4, 5, 65499))
    (tmp_path / "d.idx").write_bytes(described([3, 1, 2], [0, 2, 2, 3], 8, 2))
    data = IndexedDataset(tmp_path / "d")
    assert [data[i].tolist() for i in range(3)] == [[1, 2, 3], [4], [5, 65499]]
    assert (data.documents, data.tokens, data.document_index.tolist()) == (3, 6, [0, 2, 2, 3])
    assert data.get(0, 1, 1).tolist() == [2]
    assert data.get(0, 1, 9).tolist() == [2, 3]
    assert isinstance(data.flat(), np.memmap)
    with pytest.raises(IndexError):
        data[3]


@given(
    documents=st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=4), max_size=6),
    wide=st.booleans(),
)
def test_round_trip(
    documents: list[list[list[int]]], wide: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    prefix = tmp_path_factory.mktemp("d") / "x"
    with IndexedWriter(prefix, np.int32 if wide else np.uint16) as writer:
        for document in documents:
            for sequence in document:
                writer.add(sequence)
            writer.end_document()
    data = IndexedDataset(prefix)
    bounds = data.document_index.tolist()
    assert [
        [data[i].tolist() for i in range(first, last)] for first, last in itertools.pairwise(bounds)
    ] == documents


def test_megatron_reads_ours(make_dataset: Callable[..., Path], megatron: Any) -> None:
    for dtype in (np.uint16, np.int32):
        prefix = make_dataset(dtype.__name__, DOCUMENTS, dtype)
        theirs = megatron.IndexedDataset(str(prefix))
        assert [theirs[i].tolist() for i in range(len(theirs))] == [[1, 2, 3], [4], [5, 65499]]
        assert theirs.document_indices.tolist() == [0, 2, 2, 3]
        assert theirs[0].dtype == dtype


def test_megatrons_files_are_read_and_written_to_the_same_bytes(
    tmp_path: Path, make_dataset: Callable[..., Path], megatron: Any
) -> None:
    import torch

    for dtype in (np.uint16, np.int32):
        assert megatron.DType.optimal_dtype(65499 if dtype is np.uint16 else 65500) == dtype
        builder = megatron.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=dtype)
        for document in DOCUMENTS:
            for sequence in document:
                builder.add_item(torch.tensor(sequence))
            builder.end_document()
        builder.finalize(str(tmp_path / "theirs.idx"))
        data = IndexedDataset(tmp_path / "theirs")
        assert [data[i].tolist() for i in range(len(data))] == [[1, 2, 3], [4], [5, 65499]]
        ours = make_dataset("ours", DOCUMENTS, dtype)
        for suffix in (".bin", ".idx"):
            assert ours.with_suffix(suffix).read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()


def test_seventh_dtype_is_inferred_from_the_pointers(tmp_path: Path) -> None:
    for form, size in (("f", 4), ("d", 8)):
        (tmp_path / "d.bin").write_bytes(struct.pack(f"<3{form}", 1, 2, 3))
        (tmp_path / "d.idx").write_bytes(described([2, 1], [0, 1, 2], 7, size))
        assert IndexedDataset(tmp_path / "d").dtype.itemsize == size


def test_dtype_rule() -> None:
    assert best_dtype(65499) == np.uint16
    assert best_dtype(65500) == np.int32
    assert best_dtype(None) == np.int32
    assert sorted(DTYPES) == list(range(1, 9))


def test_merge(make_dataset: Callable[..., Path], tmp_path: Path) -> None:
    a, b = make_dataset("a", DOCUMENTS), make_dataset("b", [[[7, 8]], [[9]]])
    merge([a, b], tmp_path / "both")
    both = make_dataset("expected", [*DOCUMENTS, [[7, 8]], [[9]]])
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"both{suffix}").read_bytes() == both.with_suffix(suffix).read_bytes()
    wide = make_dataset("wide", DOCUMENTS, np.int32)
    with pytest.raises(TrainerError, match=r"wide holds int32 .* uint16"):
        merge([a, wide], tmp_path / "none")
    assert not list(tmp_path.glob("*none*"))


def test_no_file_appears_before_the_end(tmp_path: Path) -> None:
    def fail() -> None:
        with IndexedWriter(tmp_path / "d", np.uint16) as writer:
            writer.add([1])
            assert not (tmp_path / "d.bin").exists()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def changed(index: bytearray, offset: int, form: str, value: int) -> bytearray:
    struct.pack_into(form, index, offset, value)
    return index


# How the index is damaged, and what the error must say. Three sequences, a document index of four.
DAMAGES: dict[str, tuple[Callable[[bytearray], bytes | bytearray], str]] = {
    "magic": (lambda i: b"PK" + i[2:], r"d\.idx is not an index .* at offset 0"),
    "empty": (lambda i: b"", r"d\.idx is not an index"),
    "old": (lambda i: b"TNTIDX\0\0" + i[8:], r"d\.idx .* old cached or lazy kind \(TNTIDX at offset 0\)"),
    "header": (lambda i: i[:20], r"d\.idx is cut off at offset 20: its header alone takes 34"),
    "version": (lambda i: changed(i, 9, "<Q", 2), r"d\.idx has version 2 at offset 9"),
    "dtype": (lambda i: changed(i, 17, "<B", 9), r"d\.idx has dtype code 9 at offset 17"),
    "cut": (lambda i: i[:-1], r"d\.idx is cut off at offset 101: .* take 102 bytes, the file has 101"),
    "long": (lambda i: i + b"x", r"d\.idx goes on after offset 102"),
    "negative": (lambda i: changed(i, 38, "<i", -1), r"gives sequence 1 the size -1 at offset 38"),
    "pointer": (
        lambda i: changed(i, 54, "<q", 4),
        r"lets sequence 1 begin at byte 4 \(offset 54\).* at byte 6",
    ),
    "first document": (lambda i: changed(i, 70, "<q", 1), r"does not begin with 0 at offset 70"),
    "order": (lambda i: changed(i, 78, "<q", 3), r"out of order at offset 86: 2 comes after 3"),
    "last document": (lambda i: changed(i, 94, "<q", 4), r"ends its document index with 4 at offset 94"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_refused(make_dataset: Callable[..., Path], damage: str) -> None:
    change, message = DAMAGES[damage]
    prefix = make_dataset("d", DOCUMENTS)
    index = prefix.with_suffix(".idx")
    index.write_bytes(change(bytearray(index.read_bytes())))
    with pytest.raises(TrainerError, match=message) as refused:
        IndexedDataset(prefix)
    assert str(refused.value).endswith(".")


def test_a_bin_of_another_length_is_refused(make_dataset: Callable[..., Path]) -> None:
    prefix = make_dataset("d", DOCUMENTS)
    content = prefix.with_suffix(".bin").read_bytes()
    prefix.with_suffix(".bin").write_bytes(content[:-3])
    with pytest.raises(
        TrainerError, match=r"d\.bin is cut off at offset 9: .* take 12 bytes, the file has 9"
    ):
        IndexedDataset(prefix)
    prefix.with_suffix(".bin").write_bytes(content + b"\0")
    with pytest.raises(TrainerError, match=r"d\.bin goes on after offset 12"):
        IndexedDataset(prefix)
    prefix.with_suffix(".bin").unlink()
    with pytest.raises(TrainerError, match=r"d\.bin is missing"):
        IndexedDataset(prefix)
    with pytest.raises(TrainerError, match=r"x\.bin and .*x\.idx are missing"):
        IndexedDataset(prefix.with_name("x"))


@pytest.mark.parametrize(
    ("tokens", "dtype", "named"),
    [
        ([1, 70000], np.uint16, "70000"),
        ([1, -1], np.uint16, "-1"),
        ([2**31], np.int32, "2147483648"),
        ([1.5], np.uint16, "1.5"),
    ],
)
def test_a_token_that_does_not_fit_is_refused(
    tmp_path: Path, tokens: list[Any], dtype: type, named: str
) -> None:
    writer = IndexedWriter(tmp_path / "d", dtype)
    writer.add([0, 1])
    with pytest.raises(TrainerError, match=rf"^the token {named} does not fit {np.dtype(dtype).name}"):
        writer.add(tokens)
    writer.add([2])
    writer.end_document()
    writer.finish()
    assert IndexedDataset(tmp_path / "d").flat().tolist() == [0, 1, 2]


def test_two_writers_with_one_process_number_do_not_meet(tmp_path: Path) -> None:
    first, second = (IndexedWriter(tmp_path / "d", np.uint16) for _ in range(2))
    first.add([1] * 10_000)
    second.add([2])
    for writer in (first, second):
        writer.end_document()
    first.finish()
    second.finish()
    assert IndexedDataset(tmp_path / "d").flat().tolist() == [2]


@contextlib.contextmanager
def room(size: int) -> Iterator[None]:
    """Let no file grow beyond ``size`` bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_merge_on_a_full_disk_is_one_sentence_and_leaves_no_file(
    make_dataset: Callable[..., Path], tmp_path: Path
) -> None:
    parts = [make_dataset(name, [[[7] * 100_000]]) for name in "ab"]
    before = sorted(tmp_path.iterdir())
    with room(300_000), pytest.raises(TrainerError, match=r"m cannot be written: File too large\.") as raised:
        merge(parts, tmp_path / "m")
    assert raised.value.exit_code == FAILED
    assert sorted(tmp_path.iterdir()) == before
