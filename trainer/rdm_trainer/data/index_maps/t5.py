# SPDX-License-Identifier: GPL-3.0-or-later
"""The map by which Megatron cuts a data set of sentences into the samples of a BERT or T5.

One ``.npy`` beside the data, a row per sample: its first sentence, the one after its last, and the length it
is cut to. Most samples aim at the whole sequence length, one in ``1 / short_sequence_probability`` at less.

Source: NVIDIA Megatron-LM, ``dataset_utils`` and its helper for the mapping.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rdm_trainer.data.index_maps.files import misfit, read, save
from rdm_trainer.data.index_maps.mersenne import mt19937, mt19937_64
from rdm_trainer.errors import TrainerError

__all__ = ["build", "load_or_build", "map_path"]

# A document with a sentence of more tokens is left out.
LONG_SENTENCE = 512

# Draws taken from the generator at a time.
DRAWS = 1 << 16

# Documents whose bounds are Python's numbers at a time.
DOCUMENTS = 1 << 16


def build(
    sizes: npt.NDArray[np.int32],
    document_index: npt.NDArray[np.int64],
    samples: int,
    seq_length: int,
    short_probability: float,
    seed: int,
) -> npt.NDArray[np.generic]:
    """Compute the map.

    Args:
        sizes: int32, tokens of every sentence of the data set.
        document_index: int64 [documents of this split + 1], where each begins, counted in sentences.
        samples: Wanted; the epoch that reaches them is completed.
        seq_length: Tokens that a sample aims at.
        short_probability: Part of the samples that aim at less.
        seed: Of the lengths; the shuffle has the next one.

    Returns:
        [rows, 3], uint32 (uint64 from 2**32 sentences up), shuffled.

    Raises:
        TrainerError: No document can give a sample.
    """
    rows = array("q")
    target = _targets(seq_length, short_probability, seed)
    ends = np.cumsum(sizes, dtype=np.int64)
    firsts, lasts = _usable(sizes, document_index)
    while len(rows) < 3 * samples:
        before = len(rows)
        for begin in range(0, len(firsts), DOCUMENTS):
            part = slice(begin, begin + DOCUMENTS)
            for first, last in zip(firsts[part].tolist(), lasts[part].tolist(), strict=True):
                _document(
                    rows, first, ends[first:last].tolist(), int(ends[first]) - int(sizes[first]), target
                )
        if len(rows) == before:
            raise TrainerError(
                "no document gives a sample: each is empty, or has sentences and one of more than "
                f"{LONG_SENTENCE} tokens; prepare the text with --split-sentences."
            )
    dtype = np.uint32 if len(sizes) <= np.iinfo(np.uint32).max else np.uint64
    table = np.array(rows, np.int64).astype(dtype).reshape(-1, 3)
    return table[_shuffled(len(table), seed + 1)]


def _usable(
    sizes: npt.NDArray[np.int32], document_index: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The documents that give samples: the first sentence of each, and the one after its last."""
    begin = int(document_index[0])
    long = np.concatenate(
        (np.zeros(1, np.int64), np.cumsum(sizes[begin : int(document_index[-1])] > LONG_SENTENCE))
    )
    firsts, lasts = document_index[:-1], document_index[1:]
    sentences = lasts - firsts
    usable = (sentences == 1) | ((sentences > 1) & (long[lasts - begin] == long[firsts - begin]))
    return firsts[usable], lasts[usable]


def _targets(seq_length: int, short_probability: float, seed: int) -> Callable[[], int]:
    """A source of the lengths that samples aim at, one after the other."""
    ratio = int(short_probability and np.floor(1.0 / short_probability + 0.5))
    if not ratio:
        return lambda: seq_length
    generator = mt19937(seed)

    def lengths(_: int) -> list[int]:
        drawn = generator.randint(0, 2**32, size=DRAWS, dtype=np.uint32).astype(np.int64)
        short: list[int] = np.where(drawn % ratio == 0, 2 + drawn % (seq_length - 1), seq_length).tolist()
        return short

    return iter(length for block in map(lengths, count()) for length in block).__next__


def _document(rows: array[int], first: int, ends: list[int], before: int, target: Callable[[], int]) -> None:
    """Append the samples of one document to ROWS.

    A sample ends where its target is reached and at least two sentences follow, or with the document.

    Args:
        rows: Receives three numbers per sample.
        first: The document's first sentence.
        ends: Tokens of the data set up to the end of each of its sentences.
        before: Tokens of the data set before it.
        target: The next length to aim at.
    """
    last = len(ends) - 1
    sentence = 0
    wanted = target()
    while sentence <= last:
        stop = bisect_left(ends, before + wanted, sentence)
        if stop >= last - 1:
            stop = last
        rows.extend((first + sentence, first + stop + 1, wanted))
        wanted = target()
        before = ends[stop]
        sentence = stop + 1


def _shuffled(rows: int, seed: int) -> npt.NDArray[np.int64]:
    """The order that C++'s loop of swaps from the end makes of 0 … rows - 1."""
    order = list(range(rows))
    if rows > 1:
        places = np.arange(rows - 1, 0, -1, dtype=np.uint64)
        others = (mt19937_64(seed, rows - 1) % (places + np.uint64(1))).tolist()
        for i, j in zip(range(rows - 1, 0, -1), others, strict=True):
            order[i], order[j] = order[j], order[i]
    return np.array(order, np.int64)


def map_path(
    prefix: Path,
    split: str,
    samples: int,
    seq_length: int,
    short_probability: float,
    seed: int,
    directory: Path | None = None,
) -> Path:
    """The name of the map of :func:`build`'s arguments; ``directory`` None is beside the data."""
    folder = prefix.parent if directory is None else directory
    return folder / (
        f"{prefix.name}_{split}_indexmap_{samples}mns_{seq_length}msl_{short_probability:.2f}ssp_{seed}s.npy"
    )


def load_or_build(
    prefix: Path,
    split: str,
    sizes: npt.NDArray[np.int32],
    document_index: npt.NDArray[np.int64],
    samples: int,
    seq_length: int,
    short_probability: float,
    seed: int,
    *,
    directory: Path | None,
    is_writer: bool,
    barrier: Callable[[], None],
) -> npt.NDArray[np.generic]:
    """Read the map of a split; the writer makes it first where it is missing.

    Args:
        prefix: Of the data set.
        split: ``train``, ``valid`` or ``test``.
        sizes: As given to :func:`build`.
        document_index: As given to :func:`build`.
        samples: As given to :func:`build`.
        seq_length: As given to :func:`build`.
        short_probability: As given to :func:`build`.
        seed: As given to :func:`build`.
        directory: Where the map lies; None is beside the data.
        is_writer: Whether this process makes what is missing.
        barrier: Returns when every process has called it.

    Returns:
        The map, mapped into memory.

    Raises:
        TrainerError: It cannot be made, written or read, or does not fit the data.
    """
    path = map_path(prefix, split, samples, seq_length, short_probability, seed, directory)
    if is_writer and not path.is_file():
        try:
            rows = build(sizes, document_index, samples, seq_length, short_probability, seed)
        except TrainerError as error:
            raise TrainerError(f"{prefix}, split {split}: {error}") from None
        save(path, rows)
    barrier()
    table = read(path)
    first, last = int(document_index[0]), int(document_index[-1])
    sound = table.ndim == 2 and table.shape[1] == 3 and table.dtype.kind in "iu" and len(table) >= samples
    if sound and len(table):
        begins, ends, lengths = table.T.astype(np.int64)
        sound = bool(
            (begins >= first).all()
            and (begins < ends).all()
            and (ends <= last).all()
            and (lengths >= 2).all()
            and (lengths <= seq_length).all()
        )
    if not sound:
        raise misfit(path, "other samples")
    return table
