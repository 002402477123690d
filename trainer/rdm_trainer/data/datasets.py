# SPDX-License-Identifier: GPL-3.0-or-later
"""Samples by number: a GPT's, a T5's, and a blend's. No torch here."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rdm_core.errors import FAILED, TrainerError
from rdm_trainer.data.index_maps.gpt import GPTIndex
from rdm_trainer.data.indexed_dataset import IndexedDataset
from rdm_trainer.data.span_corruption import SpanCorruption

# A GPT's: tokens [s + 1].
# A BERT's: tokens [s], labels [s], loss mask [s].
# A T5's: encoder ids [s_e], decoder ids [s_d], labels [s_d], loss mask [s_d].
Arrays = tuple[npt.NDArray[np.generic], ...]


class SampleSource(Protocol):
    """Samples that are a pure function of their number."""

    def __len__(self) -> int:
        """The number of samples."""

    def __getitem__(self, number: int) -> Arrays:
        """Return a sample by its number."""


_Part = tuple[int, int, npt.NDArray[np.generic]]
"""A part of a sample: its sequence, its first token there, and its tokens."""


class GPTDataset:
    """Runs of ``seq_length + 1`` tokens, across documents."""

    def __init__(self, dataset: IndexedDataset, index: GPTIndex, seq_length: int, vocab_size: int) -> None:
        """Read a data set by its index; its tokens must lie below ``vocab_size``."""
        self._dataset = dataset
        self._index = index
        self._length = seq_length + 1
        self._vocab_size = vocab_size

    def __len__(self) -> int:
        """The number of samples."""
        return len(self._index)

    def __getitem__(self, number: int) -> Arrays:
        """Tokens int64 [seq_length + 1]."""
        row = int(self._index.shuffle_idx[number])
        tokens = np.empty(self._length, np.int64)
        filled = 0
        for _, _, part in self._parts(row):
            if filled + len(part) > self._length:
                break
            tokens[filled : filled + len(part)] = part
            filled += len(part)
        else:
            if filled == self._length:
                if _is_outside(tokens, self._vocab_size):
                    raise _foreign(self._dataset, self._parts(row), self._vocab_size)
                return (tokens,)
        raise TrainerError(
            f"the index map of {self._dataset.prefix} is damaged at sample {row}: it does not take "
            f"{self._length} tokens; remove the map, and it is made again at the next start.",
            exit_code=FAILED,
        )

    def _parts(self, row: int) -> Iterator[_Part]:
        """The parts of a row of the map."""
        index = self._index
        first, offset = index.sample_idx[row].tolist()
        last, stop = index.sample_idx[row + 1].tolist()
        for position in range(first, last + 1):
            # The sample includes the token at which the next one begins.
            length = stop + 1 - offset if position == last else None
            sequence = int(index.doc_idx[position])
            yield sequence, offset, self._dataset.get(sequence, offset, length)
            offset = 0


class T5Dataset:
    """Runs of sentences with spans masked."""

    def __init__(
        self,
        dataset: IndexedDataset,
        table: npt.NDArray[np.generic],
        spans: SpanCorruption,
        seed: int,
        vocab_size: int,
    ) -> None:
        """Read a data set by a table; the seed and the sample's number determine the masking.

        Args:
            dataset: The sentences.
            table: [samples, 3], of the index map.
            spans: Which spans are masked.
            seed: Seed of the masking.
            vocab_size: The tokens of the sentences must lie below it.
        """
        self._dataset = dataset
        self._table = table
        self._spans = spans
        self._seed = seed
        self._vocab_size = vocab_size

    def __len__(self) -> int:
        """The number of samples."""
        return len(self._table)

    def __getitem__(self, number: int) -> Arrays:
        """Encoder ids int64 [s_e], decoder ids int64 [s_d], labels int64 [s_d], loss mask float32 [s_d]."""
        parts = list(self._parts(number))
        text = np.concatenate([np.empty(0, np.int64), *(part for *_, part in parts)], dtype=np.int64)
        if _is_outside(text, self._vocab_size):
            raise _foreign(self._dataset, parts, self._vocab_size)
        return self._spans(text, np.random.RandomState((self._seed + number) % 2**32))

    def _parts(self, number: int) -> Iterator[_Part]:
        """The parts of a sample."""
        first, end, room = self._table[number].tolist()
        for sentence in range(first, end):
            if room <= 0:
                break
            part = self._dataset.get(sentence, 0, room)
            room -= len(part)
            yield sentence, 0, part


class WindowDataset(T5Dataset):
    """Windows of documents that are not split into sentences, with spans masked."""

    def _parts(self, number: int) -> Iterator[_Part]:
        sequence, offset, length = self._table[number].tolist()
        yield sequence, offset, self._dataset.get(sequence, offset, length)


def _is_outside(tokens: npt.NDArray[np.int64], vocab_size: int) -> bool:
    """Whether a token is not in the vocabulary."""
    # As unsigned numbers, negative tokens lie above every vocabulary: one pass checks both bounds.
    return int(tokens.view(np.uint64).max(initial=0)) >= vocab_size


def _foreign(dataset: IndexedDataset, parts: Iterable[_Part], vocab_size: int) -> TrainerError:
    """Return the error for a sample with a token that is not in the vocabulary."""
    wide = ((sequence, offset, part.astype(np.int64)) for sequence, offset, part in parts)
    sequence, offset, tokens = next(part for part in wide if _is_outside(part[2], vocab_size))
    place = int(np.argmax((tokens < 0) | (tokens >= vocab_size)))
    return TrainerError(
        f"{dataset.prefix} holds the token {tokens[place]} (sequence {sequence}, token {offset + place}), "
        f"but model.vocab_size is {vocab_size}: train with the tokenizer that made the data, or make the "
        "data again.",
        exit_code=FAILED,
    )


class Blended:
    """Several sources mixed by weight."""

    def __init__(
        self,
        sources: Sequence[SampleSource],
        chosen: npt.NDArray[np.int16],
        number: npt.NDArray[np.integer[Any]],
    ) -> None:
        """Mix sources: sample i is sample ``number[i]`` of source ``chosen[i]``."""
        self._sources = sources
        self._source, self._number = chosen, number
        for position, source in enumerate(sources):
            taken = int((self._source == position).sum())
            if taken > len(source):
                raise TrainerError(
                    f"data set {position + 1} of the blend has {len(source)} samples, but {taken} are wanted."
                )

    def __len__(self) -> int:
        """The number of samples."""
        return len(self._source)

    def __getitem__(self, number: int) -> Arrays:
        """Return a sample of the blend by its number."""
        return self._sources[int(self._source[number])][int(self._number[number])]


class Chained:
    """Several sources, one after the other."""

    def __init__(self, sources: Sequence[SampleSource]) -> None:
        """Chain the sources in this order."""
        self._sources = sources
        self._ends = list(itertools.accumulate(map(len, sources)))

    def __len__(self) -> int:
        """The number of samples."""
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> Arrays:
        """Return a sample by its number in all sources together."""
        source = bisect.bisect_right(self._ends, number)
        return self._sources[source][number - (self._ends[source - 1] if source else 0)]
