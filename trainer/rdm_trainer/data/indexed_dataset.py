# SPDX-License-Identifier: GPL-3.0-or-later
"""Megatron's memory-mapped data sets: a ``.bin`` of tokens, an ``.idx`` that says where each sequence lies.

All integers are little-endian. The index is: 9 bytes of magic, u64 version 1, u8 dtype code, u64 number of
sequences n, u64 length d of the document index, int32 sizes[n] (tokens), int64 pointers[n] (bytes), int64
document index[d] (first 0, then the end of each document, counted in sequences).

Source: NVIDIA Megatron-LM, the "mmap" data-set implementation.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from rdm_core.errors import FAILED, TrainerError

MAGIC = b"MMIDIDX\x00\x00"
OLD_MAGIC = b"TNTIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
# Tokens of each run that is searched for the lowest and the highest.
RUN = 65_536

# Code 7 was float64 in the first Megatron (like 6) and is float32 in megatron-core; the pointers tell which.
DTYPES: dict[int, np.dtype[np.generic]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    6: np.dtype("<f8"),
    7: np.dtype("<f4"),
    8: np.dtype("<u2"),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}

# From this vocabulary size up, tokens take four bytes.
WIDE_VOCABULARY = 65500


def best_dtype(vocab_size: int | None) -> np.dtype[np.generic]:
    """The dtype that Megatron gives to the tokens of a vocabulary.

    Args:
        vocab_size: Size of the tokenizer's vocabulary, unpadded; None where it is not known.

    Returns:
        Unsigned 16-bit integers below 65,500 tokens, otherwise signed 32-bit ones.
    """
    return DTYPES[8] if vocab_size is not None and vocab_size < WIDE_VOCABULARY else DTYPES[4]


def paths(prefix: Path) -> tuple[Path, Path]:
    """Return the ``.bin`` and the ``.idx`` of a data set.

    Args:
        prefix: The path without a suffix.

    Raises:
        TrainerError: It does not end with a name.
    """
    if prefix.name in ("", ".."):
        raise TrainerError(
            f"{prefix} is a directory, not the prefix of a data set: give the path with the beginning of the "
            f"files' names, as {prefix / 'corpus'}."
        )
    return prefix.with_name(prefix.name + ".bin"), prefix.with_name(prefix.name + ".idx")


class IndexedDataset:
    """A data set on the disk, mapped into memory: nothing is read before it is needed.

    Attributes:
        prefix: The path without ``.bin`` or ``.idx``.
        sizes: int32 [n], tokens of each sequence.
        pointers: int64 [n], byte offset of each sequence in the ``.bin``.
        document_index: int64 [documents + 1], the sequence at which each document ends, first 0.
        dtype: Type of the tokens.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        """Map the data set's ``.bin`` and ``.idx``.

        Args:
            prefix: The path without a suffix.

        Raises:
            TrainerError: A file is missing, or is not what its index says; names the file and the offset.
        """
        self.prefix = Path(prefix)
        self._bin, self._idx = paths(self.prefix)
        try:
            self._open()
        except OSError as error:
            raise TrainerError(
                f"{error.filename or self.prefix} cannot be read: {error.strerror or error}."
            ) from error

    def _open(self) -> None:
        missing = [path for path in (self._bin, self._idx) if not path.is_file()]
        if missing:
            listed = " and ".join(str(path) for path in missing)
            raise TrainerError(
                f"{listed} {'is' if len(missing) == 1 else 'are'} missing: give the path of a .bin/.idx pair "
                "without the suffix, or make one with `rdm-trainer preprocess`."
            )
        self._read_header()
        self._check()
        self._tokens: npt.NDArray[np.generic] = (
            np.memmap(self._bin, dtype=self.dtype, mode="r")
            if self._bin.stat().st_size
            else np.empty(0, self.dtype)
        )

    def _read_header(self) -> None:
        length = self._idx.stat().st_size
        with self._idx.open("rb") as file:
            header = file.read(HEADER.size)
        if header[: len(OLD_MAGIC)] == OLD_MAGIC:
            raise TrainerError(
                f"{self._idx} is a data set of the old cached or lazy kind (TNTIDX at offset 0), which is "
                "not read here: make it again with `rdm-trainer preprocess`, or with --dataset-impl mmap."
            )
        if header[: len(MAGIC)] != MAGIC:
            raise TrainerError(
                f"{self._idx} is not an index of a data set: at offset 0 it has "
                f"{header[: len(MAGIC)]!r} instead of {MAGIC!r}."
            )
        if length < HEADER.size:
            raise TrainerError(
                f"{self._idx} is cut off at offset {length}: its header alone takes {HEADER.size} bytes."
            )
        _, version, code, sequences, documents = HEADER.unpack(header)
        if version != VERSION:
            raise TrainerError(
                f"{self._idx} has version {version} at offset 9; only version {VERSION} is known."
            )
        if code not in DTYPES:
            raise TrainerError(f"{self._idx} has dtype code {code} at offset 17; the known ones are 1 to 8.")
        expected = HEADER.size + 12 * sequences + 8 * documents
        if length != expected:
            raise TrainerError(
                f"{self._idx} {_extent(length, expected)}: {sequences} sequences and a document index of "
                f"{documents} entries take {expected} bytes, the file has {length}."
            )
        raw = np.memmap(self._idx, dtype=np.uint8, mode="r")
        at = HEADER.size
        self.sizes: npt.NDArray[np.int32] = np.frombuffer(raw, "<i4", sequences, at)
        at += 4 * sequences
        self.pointers: npt.NDArray[np.int64] = np.frombuffer(raw, "<i8", sequences, at)
        at += 8 * sequences
        self.document_index: npt.NDArray[np.int64] = np.frombuffer(raw, "<i8", documents, at)
        self.dtype = DTYPES[code]
        if (
            code == 7
            and sequences
            and self.sizes[0]
            and sequences > 1
            and self.pointers[1] == 8 * self.sizes[0]
        ):
            self.dtype = DTYPES[6]

    def _check(self) -> None:
        """Check that the index is consistent and matches the length of the ``.bin``."""
        n = len(self.sizes)
        sizes_at, pointers_at, documents_at = HEADER.size, HEADER.size + 4 * n, HEADER.size + 12 * n
        if n and int(self.sizes.min()) < 0:
            bad = int(np.argmax(self.sizes < 0))
            raise TrainerError(
                f"{self._idx} gives sequence {bad} the size {self.sizes[bad]} at offset "
                f"{sizes_at + 4 * bad}; a size cannot be negative."
            )
        ends = np.cumsum(self.sizes, dtype=np.int64) * self.dtype.itemsize
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1])) if n else ends
        wrong = self.pointers != starts
        if wrong.any():
            bad = int(np.argmax(wrong))
            raise TrainerError(
                f"{self._idx} lets sequence {bad} begin at byte {self.pointers[bad]} (offset "
                f"{pointers_at + 8 * bad}), but the sequences before it end at byte {starts[bad]}."
            )
        expected = int(ends[-1]) if n else 0
        length = self._bin.stat().st_size
        if length != expected:
            raise TrainerError(
                f"{self._bin} {_extent(length, expected)}: its index holds "
                f"{expected // self.dtype.itemsize} tokens of {self.dtype.itemsize} bytes, which take "
                f"{expected} bytes, the file has {length}."
            )
        documents = self.document_index
        if not len(documents) or documents[0] != 0:
            raise TrainerError(
                f"{self._idx} has a document index that does not begin with 0 at offset {documents_at}."
            )
        order = np.diff(documents) < 0
        if order.any():
            bad = int(np.argmax(order)) + 1
            raise TrainerError(
                f"{self._idx} has its document index out of order at offset {documents_at + 8 * bad}: "
                f"{documents[bad]} comes after {documents[bad - 1]}."
            )
        if documents[-1] != n:
            raise TrainerError(
                f"{self._idx} ends its document index with {documents[-1]} at offset "
                f"{documents_at + 8 * (len(documents) - 1)}, but has {n} sequences."
            )

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self.sizes)

    def __getitem__(self, index: int) -> npt.NDArray[np.generic]:
        """Return the tokens of a sequence, [sizes[index]], as a view of the file."""
        return self.get(index)

    def get(self, index: int, offset: int = 0, length: int | None = None) -> npt.NDArray[np.generic]:
        """Return a part of a sequence.

        Args:
            index: The sequence.
            offset: Number of its first token.
            length: How many tokens; None: all that follow.

        Returns:
            [length] tokens, a view of the file.

        Raises:
            IndexError: The data set has no such sequence.
        """
        n = len(self.sizes)
        if not -n <= index < n:
            raise IndexError(f"sequence {index} of {n} in {self.prefix}")
        start = int(self.pointers[index]) // self.dtype.itemsize
        end = start + int(self.sizes[index])
        start += offset
        return self._tokens[start : end if length is None else min(end, start + length)]

    @property
    def documents(self) -> int:
        """The number of documents."""
        return len(self.document_index) - 1

    @property
    def tokens(self) -> int:
        """The number of tokens in all."""
        return len(self._tokens)

    def flat(self) -> npt.NDArray[np.generic]:
        """All tokens, [tokens], as they lie in the file."""
        return self._tokens

    def extremes(self, runs: int) -> tuple[int, int]:
        """Return the lowest and the highest token of some evenly spaced runs of ``RUN`` tokens.

        Args:
            runs: Their number; the data set must have a token.
        """
        flat = self.flat()
        starts = np.unique(np.linspace(0, max(len(flat) - RUN, 0), runs, dtype=np.int64)).tolist()
        lowest = min(int(flat[start : start + RUN].min()) for start in starts)
        return lowest, max(int(flat[start : start + RUN].max()) for start in starts)


class IndexedWriter:
    """Writes a data set. The final names appear only when it is complete, the ``.idx`` last."""

    def __init__(self, prefix: str | os.PathLike[str], dtype: npt.DTypeLike) -> None:
        """Begin the data set's ``.bin``.

        Args:
            prefix: The path without a suffix; its directory is created.
            dtype: Type of the tokens, one of :data:`DTYPES`.

        Raises:
            TrainerError: The format has no such dtype.
        """
        self.dtype = np.dtype(dtype).newbyteorder("<")
        if self.dtype not in CODES:
            raise TrainerError(
                f"a .bin cannot hold {self.dtype.name}; it can hold uint16 and int32, among others."
            )
        self._final = paths(Path(prefix))
        mark = secrets.token_hex(8)
        self._temporary = tuple(path.with_name(f".{path.name}.{mark}.part") for path in self._final)
        self._final[0].parent.mkdir(parents=True, exist_ok=True)
        self._file = self._temporary[0].open("wb")
        self._sizes = array("i")
        self._ends = array("q", [0])

    def add(self, tokens: npt.ArrayLike) -> None:
        """Append one sequence of tokens, [any length].

        Raises:
            TrainerError: The dtype cannot hold one of them.
        """
        sequence = np.asarray(tokens)
        if sequence.size and self.dtype.kind in "iu" and sequence.dtype != self.dtype:
            self._require_fit(sequence)
        self._file.write(np.ascontiguousarray(sequence, dtype=self.dtype).tobytes())
        self._sizes.append(sequence.size)

    def _require_fit(self, sequence: npt.NDArray[np.generic]) -> None:
        limits = np.iinfo(self.dtype)
        for token in (sequence.min(), sequence.max()):
            if sequence.dtype.kind not in "iu" or not limits.min <= int(token) <= limits.max:
                raise TrainerError(
                    f"the token {token} does not fit {self.dtype.name}, which holds whole numbers from "
                    f"{limits.min} to {limits.max}: give the data set a wider dtype."
                )

    def end_document(self) -> None:
        """End a document after the sequences so far."""
        self._ends.append(len(self._sizes))

    def add_dataset(self, other: IndexedDataset) -> None:
        """Append all of another data set.

        Raises:
            TrainerError: Its tokens have another dtype.
        """
        if other.dtype != self.dtype:
            raise TrainerError(
                f"{other.prefix} holds {other.dtype.name} and the data sets before it {self.dtype.name}: "
                "only data sets made with one tokenizer can be merged."
            )
        self._file.write(other.flat().data)
        self._ends.frombytes((other.document_index[1:] + len(self._sizes)).tobytes())
        self._sizes.frombytes(other.sizes.tobytes())

    def finish(self) -> None:
        """Write the index, and give both files their final names."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        with self._temporary[1].open("wb") as file:
            write_index(file, np.array(self._sizes, np.int32), np.array(self._ends, np.int64), self.dtype)
        # An older index would describe the new .bin wrongly for a moment.
        self._final[1].unlink(missing_ok=True)
        for temporary, final in zip(self._temporary, self._final, strict=True):
            temporary.replace(final)

    def abandon(self) -> None:
        """Remove the unfinished files."""
        with contextlib.suppress(OSError):
            self._file.close()
        for temporary in self._temporary:
            temporary.unlink(missing_ok=True)

    def __enter__(self) -> IndexedWriter:
        """Return the writer; leaving the block finishes it, an exception abandons it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish, or abandon after an exception."""
        try:
            if kind is None:
                self.finish()
        finally:
            self.abandon()


def write_index(
    file: BinaryIO,
    sizes: npt.NDArray[np.int32],
    document_index: npt.NDArray[np.int64],
    dtype: np.dtype[np.generic],
) -> None:
    """Write an ``.idx`` and sync it to the disk.

    Args:
        file: Open for writing bytes.
        sizes: int32 [n], tokens of each sequence.
        document_index: int64 [documents + 1].
        dtype: Type of the tokens.
    """
    pointers = np.zeros(len(sizes), "<i8")
    np.cumsum(sizes[:-1], dtype=np.int64, out=pointers[1:])
    pointers *= dtype.itemsize
    file.write(HEADER.pack(MAGIC, VERSION, CODES[dtype], len(sizes), len(document_index)))
    for part in (sizes.astype("<i4", copy=False), pointers, document_index.astype("<i8", copy=False)):
        file.write(part.tobytes())
    file.flush()
    os.fsync(file.fileno())


def merge(prefixes: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> None:
    """Concatenate several data sets.

    Args:
        prefixes: Paths without suffix, in order.
        output: The path of the new data set, without suffix.

    Raises:
        TrainerError: No data set is given, one is damaged, their dtypes differ, or the output exists or
            cannot be written.
    """
    if not prefixes:
        raise TrainerError("nothing to merge: give at least one data set.")
    files = paths(Path(output))
    datasets = [IndexedDataset(prefix) for prefix in prefixes]
    try:
        existing = [str(path) for path in files if path.exists()]
        if existing:
            raise TrainerError(f"{' and '.join(existing)} would be replaced: choose another --output-prefix.")
        with IndexedWriter(output, datasets[0].dtype) as writer:
            for dataset in datasets:
                writer.add_dataset(dataset)
    except OSError as error:
        raise TrainerError(
            f"{output} cannot be written: {error.strerror or error}. Nothing is left of it.", exit_code=FAILED
        ) from error


def _extent(length: int, expected: int) -> str:
    """Return how a file's length differs from the expected one, both in bytes."""
    return f"is cut off at offset {length}" if length < expected else f"goes on after offset {expected}"
