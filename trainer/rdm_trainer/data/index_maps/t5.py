# SPDX-License-Identifier: GPL-3.0-or-later
"""The map by which Megatron cuts a data set of sentences into the samples of a BERT or T5.

One ``.npy`` next to the data, a row per sample: its first sentence, the one after its last, and the length it
is cut to. The target length of most samples is the whole sequence length; that of one in
``1 / short_sequence_probability`` is less.

Source: NVIDIA Megatron-LM, ``dataset_utils`` and its helper for the mapping.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rdm_core.errors import TrainerError
from rdm_trainer.data.index_maps.maker import Progress
from rdm_trainer.data.index_maps.mersenne import blocks, mt19937

# A document with a sentence of more tokens is left out.
LONG_SENTENCE = 512

# Draws taken from a generator at a time.
_DRAWS = 1 << 16

# Sentences of the documents that are cut at a time.
_SENTENCES = 1 << 20


def build(
    sizes: npt.NDArray[np.int32],
    document_index: npt.NDArray[np.int64],
    samples: int,
    seq_length: int,
    short_probability: float,
    seed: int,
    progress: Progress = lambda _: None,
) -> npt.NDArray[np.generic]:
    """Compute the map.

    Args:
        sizes: int32, tokens of every sentence of the data set.
        document_index: int64 [documents of this split + 1], where each begins, counted in sentences.
        samples: Samples that are wanted; the epoch that reaches them is completed.
        seq_length: Target length of a sample, in tokens.
        short_probability: Share of the samples with a shorter target.
        seed: Seed of the lengths; the next one is that of the shuffle.
        progress: Called with the share that is done.

    Returns:
        [rows, 3], uint32 (uint64 from 2**32 sentences up), shuffled.

    Raises:
        TrainerError: No document makes a sample.
    """
    from rdm_trainer.data.index_maps import kernels

    firsts, lasts = _usable(sizes, document_index)
    parts, rows = [], 0
    if samples and not len(firsts):
        raise TrainerError(
            "no document gives a sample: each is empty, or has sentences and one of more than "
            f"{LONG_SENTENCE} tokens; prepare the text with --split-sentences."
        )
    dtype = np.uint32 if len(sizes) <= np.iinfo(np.uint32).max else np.uint64
    targets = _Targets(seq_length, short_probability, seed)
    blocks_of_documents = list(_blocks(lasts - firsts))
    while rows < samples:
        for block in blocks_of_documents:
            # At most one sample per sentence, and one more length for each document.
            most = int((lasts[block] - firsts[block]).sum())
            cut = np.empty((most, 3), dtype)
            lengths = targets.ahead(most + len(firsts[block]))
            count, taken = kernels.sentence_rows(sizes, firsts[block], lasts[block], lengths, cut)
            targets.take(taken)
            parts.append(cut[:count].copy())
            rows += count
            progress(0.9 * min(1.0, rows / samples))
    table = np.concatenate(parts) if parts else np.empty((0, 3), dtype)
    parts.clear()
    _shuffle(table, seed + 1)
    return table


def _blocks(sentences: npt.NDArray[np.int64]) -> Iterator[slice]:
    """Cut documents into runs of about ``_SENTENCES`` sentences."""
    before = np.cumsum(sentences) // _SENTENCES
    bounds = [0, *(np.flatnonzero(np.diff(before)) + 1).tolist(), len(sentences)]
    for begin, end in itertools.pairwise(bounds):
        yield slice(begin, end)


def _usable(
    sizes: npt.NDArray[np.int32], document_index: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the documents that make samples: the first sentence of each, and the one after its last."""
    begin = int(document_index[0])
    long = np.concatenate(
        (np.zeros(1, np.int64), np.cumsum(sizes[begin : int(document_index[-1])] > LONG_SENTENCE))
    )
    firsts, lasts = document_index[:-1], document_index[1:]
    sentences = lasts - firsts
    usable = (sentences == 1) | ((sentences > 1) & (long[lasts - begin] == long[firsts - begin]))
    return firsts[usable], lasts[usable]


class _Targets:
    """The target lengths of the samples, in order."""

    def __init__(self, seq_length: int, short_probability: float, seed: int) -> None:
        self._length = seq_length
        self._ratio = int(short_probability and np.floor(1.0 / short_probability + 0.5))
        self._generator = mt19937(seed)
        self._ahead = np.empty(0, np.int64)

    def ahead(self, count: int) -> npt.NDArray[np.int64]:
        """Return at least ``count`` of the next lengths, without taking them."""
        if not self._ratio:
            return np.full(count, self._length, np.int64)
        missing = count - len(self._ahead)
        if missing > 0:
            size = -(-missing // _DRAWS) * _DRAWS
            drawn = self._generator.randint(0, 2**32, size=size, dtype=np.uint32).astype(np.int64)
            short = np.where(drawn % self._ratio == 0, 2 + drawn % (self._length - 1), self._length)
            self._ahead = np.concatenate((self._ahead, short))
        return self._ahead

    def take(self, count: int) -> None:
        """Take ``count`` of the next lengths."""
        self._ahead = self._ahead[count:]


def _shuffle(table: npt.NDArray[np.generic], seed: int) -> None:
    """Shuffle a table's rows as Megatron's C++ loop does, by swaps from the end."""
    from rdm_trainer.data.index_maps import kernels

    end = len(table)
    for numbers in blocks(seed, max(0, end - 1)):
        kernels.swap_rows(table, numbers, end)
        end -= len(numbers)


def map_path(
    prefix: Path,
    split: str,
    samples: int,
    seq_length: int,
    short_probability: float,
    seed: int,
    directory: Path | None = None,
) -> Path:
    """Return the path of the map for :func:`build`'s arguments; ``directory`` None: next to the data."""
    folder = prefix.parent if directory is None else directory
    return folder / (
        f"{prefix.name}_{split}_indexmap_{samples}mns_{seq_length}msl_{short_probability:.2f}ssp_{seed}s.npy"
    )


def fits(
    table: npt.NDArray[np.generic], document_index: npt.NDArray[np.int64], samples: int, seq_length: int
) -> bool:
    """Return whether each row is a run of sentences of this split; arguments as of :func:`build`."""
    if table.ndim != 2 or table.shape[1] != 3 or table.dtype.kind not in "iu" or len(table) < samples:
        return False
    begins, ends, lengths = table.T.astype(np.int64)
    return bool(
        (begins >= document_index[0]).all()
        and (begins < ends).all()
        and (ends <= document_index[-1]).all()
        and (lengths >= 2).all()
        and (lengths <= seq_length).all()
    )
