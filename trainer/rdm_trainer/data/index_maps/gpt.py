# SPDX-License-Identifier: GPL-3.0-or-later
"""The maps by which Megatron cuts a data set into the samples of a GPT.

Three arrays, each a ``.npy`` next to the data: ``doc_idx`` is the order of the documents over all epochs,
``sample_idx`` says at which entry of it and at which token each sample begins, ``shuffle_idx`` is the order
of the samples. A sample reads one token more than the sequence length; the last token of a sample is the
first of the next.

Source: NVIDIA Megatron-LM, ``gpt_dataset`` and its helper for the sample index.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rdm_core.errors import TrainerError
from rdm_trainer.data.index_maps.files import misfit, read
from rdm_trainer.data.index_maps.maker import MapMaker, Progress

# If less than this share of the last epoch is used, it is shuffled separately.
_LAST_EPOCH_PART = 0.80
_NAMES = ("doc_idx", "sample_idx", "shuffle_idx")


@dataclass(frozen=True)
class GPTIndex:
    """The three maps.

    Attributes:
        doc_idx: int32 [epochs * documents].
        sample_idx: int32 [samples + 1, 2], position in doc_idx and token in that document.
        shuffle_idx: uint32 [samples] (int64 from 2**32 - 2 samples up).
    """

    doc_idx: npt.NDArray[np.int32]
    sample_idx: npt.NDArray[np.int32]
    shuffle_idx: npt.NDArray[np.integer[Any]]

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.shuffle_idx)


def epochs_needed(tokens: int, seq_length: int, samples: int) -> int:
    """Return the fewest epochs that hold this many samples.

    Args:
        tokens: Tokens per epoch, above 0.
        seq_length: Tokens per sample, less the last label.
        samples: Samples that are wanted.

    Returns:
        The smallest E >= 1 with (E * tokens - 1) // seq_length >= samples.
    """
    return max(1, -(-(samples * seq_length + 1) // tokens))


def build(
    sizes: npt.NDArray[np.int32],
    documents: npt.NDArray[np.int32],
    samples: int,
    seq_length: int,
    seed: int,
) -> GPTIndex:
    """Compute the maps.

    Args:
        sizes: int32, tokens of every sequence of the data set.
        documents: int32, the sequences of this split.
        samples: Samples that are wanted.
        seq_length: Tokens per sample, less one.
        seed: Seed of the shuffles.

    Returns:
        The maps; they hold at least ``samples`` samples.

    Raises:
        TrainerError: The split holds no whole sample, or too much for the maps.
    """
    return GPTIndex(*_arrays(sizes, documents, samples, seq_length, seed))


def _arrays(
    sizes: npt.NDArray[np.int32],
    documents: npt.NDArray[np.int32],
    samples: int,
    seq_length: int,
    seed: int,
) -> Iterator[Any]:
    """Yield the three maps, each as soon as it is complete; see :func:`build`."""
    tokens = int(sizes[documents].sum(dtype=np.int64))
    if not tokens:
        raise TrainerError("the split holds no token.")
    epochs = epochs_needed(tokens, seq_length, samples)
    total = (epochs * tokens - 1) // seq_length
    if total < 1:
        raise TrainerError(
            f"the split holds {tokens} tokens, not enough for one sample of {seq_length} tokens and its "
            "label."
        )
    if epochs * len(documents) > np.iinfo(np.int32).max:
        raise TrainerError(
            f"{epochs} epochs of {len(documents)} documents are more than the maps can count: train on fewer "
            "samples."
        )
    before_last = 0
    separate = False
    if epochs > 1:
        before_last = ((epochs - 1) * tokens - 1) // seq_length
        separate = samples - before_last < int(_LAST_EPOCH_PART * ((tokens - 1) // seq_length))

    # The order of the draws matters: documents first, then samples.
    random = np.random.RandomState(seed)
    if separate:
        doc_idx = np.tile(documents.astype(np.int32, copy=False), epochs - 1)
        random.shuffle(doc_idx)
        last = documents.astype(np.int32, copy=True)
        random.shuffle(last)
        doc_idx = np.concatenate((doc_idx, last))
    else:
        doc_idx = np.tile(documents.astype(np.int32, copy=False), epochs)
        random.shuffle(doc_idx)

    yield doc_idx
    yield _sample_idx(sizes, doc_idx, seq_length, total)

    dtype = np.dtype(np.uint32 if total < np.iinfo(np.uint32).max - 1 else np.int64)
    cut = before_last if separate else total
    shuffle_idx: npt.NDArray[np.integer[Any]] = np.arange(total).astype(dtype)
    random.shuffle(shuffle_idx[:cut])
    if cut != total:
        random.shuffle(shuffle_idx[cut:])
    yield shuffle_idx


def _sample_idx(
    sizes: npt.NDArray[np.int32], doc_idx: npt.NDArray[np.int32], seq_length: int, total: int
) -> npt.NDArray[np.int32]:
    """Return where each sample begins: the document with token k * seq_length, and the place in it."""
    ends = np.cumsum(sizes[doc_idx], dtype=np.int64)
    tokens = np.arange(total + 1, dtype=np.int64) * seq_length
    position = np.searchsorted(ends, tokens, side="right")
    result = np.empty((total + 1, 2), np.int32)
    result[:, 0] = position
    result[:, 1] = tokens - (ends[position] - sizes[doc_idx[position]])
    # Megatron begins at the first document even if that one is empty.
    result[0] = 0
    return result


def _walks(lengths: npt.NDArray[np.int32], sample_idx: npt.NDArray[np.generic], seq_length: int) -> bool:
    """Return whether some hundred samples, and the map as a whole, have the right number of tokens.

    Args:
        lengths: Tokens of each entry of doc_idx.
        sample_idx: [samples + 1, 2].
        seq_length: Tokens from one sample to the next.
    """
    samples = len(sample_idx) - 1
    rows = np.unique(np.linspace(0, samples - 1, min(samples, 512), dtype=np.int64))
    for begin, end in [*((row, row + 1) for row in rows.tolist()), (0, samples)]:
        (first, offset), (last, stop) = sample_idx[begin].tolist(), sample_idx[end].tolist()
        if not (
            0 <= first <= last < len(lengths) and 0 <= offset <= lengths[first] and 0 <= stop < lengths[last]
        ):
            return False
        if int(lengths[first:last].sum(dtype=np.int64)) - offset + stop != (end - begin) * seq_length:
            return False
    return True


def map_paths(
    prefix: Path, split: str, samples: int, seq_length: int, seed: int, directory: Path | None = None
) -> tuple[Path, Path, Path]:
    """Return the paths of the three maps.

    Args:
        prefix: Prefix of the data set.
        split: ``train``, ``valid`` or ``test``.
        samples: As given to :func:`build`.
        seq_length: As given to :func:`build`.
        seed: As given to :func:`build`.
        directory: Their directory; None: next to the data.
    """
    stem = f"{prefix.name}_{split}_indexmap_{samples}ns_{seq_length}sl_{seed}s"
    folder = prefix.parent if directory is None else directory
    doc, sample, shuffle = (folder / f"{stem}_{name}.npy" for name in _NAMES)
    return doc, sample, shuffle


def load(
    files: tuple[Path, Path, Path],
    sizes: npt.NDArray[np.int32],
    documents: npt.NDArray[np.int32],
    samples: int,
    seq_length: int,
) -> GPTIndex:
    """Read maps, made here or elsewhere, and compare them with the data.

    Args:
        files: As :func:`map_paths` gives them.
        sizes: int32, tokens of every sequence of the data set.
        documents: int32, the sequences of this split.
        samples: Samples that are wanted.
        seq_length: Tokens per sample, less one.

    Returns:
        The maps, mapped into memory.

    Raises:
        TrainerError: A map is missing or damaged, or belongs to other data.
    """
    doc_idx, sample_idx, shuffle_idx = (read(path) for path in files)
    tokens = int(sizes[documents].sum(dtype=np.int64))
    epochs = epochs_needed(tokens, seq_length, samples) if tokens else 0
    total = (epochs * tokens - 1) // seq_length

    def fits(index: int, true: bool, what: str) -> None:
        if not true:
            raise misfit(files[index], what)

    fits(0, doc_idx.dtype == np.int32 and doc_idx.ndim == 1, f"{doc_idx.dtype} {list(doc_idx.shape)}")
    fits(0, len(doc_idx) == epochs * len(documents), f"{len(doc_idx)} entries, not {epochs * len(documents)}")
    inside = len(doc_idx) and int(doc_idx.min()) >= 0 and int(doc_idx.max()) < len(sizes)
    fits(0, bool(inside), "documents that are not there")
    expected = np.zeros(len(sizes), np.int64)
    expected[documents] = epochs
    fits(0, np.array_equal(np.bincount(doc_idx, minlength=len(sizes)), expected), "other documents")
    fits(1, sample_idx.dtype in (np.int32, np.int64), str(sample_idx.dtype))
    fits(1, sample_idx.shape == (total + 1, 2), f"{list(sample_idx.shape)}, not {[total + 1, 2]}")
    fits(1, _walks(sizes[doc_idx], sample_idx, seq_length), "samples of another length")
    fits(2, shuffle_idx.shape == (total,), f"{list(shuffle_idx.shape)}, not {[total]}")
    fits(2, shuffle_idx.dtype in (np.uint32, np.int64), str(shuffle_idx.dtype))
    # Compare the sum with a permutation's: a full test would need a copy in every process.
    permuted = (
        int(shuffle_idx.max()) < total and int(shuffle_idx.sum(dtype=np.int64)) == total * (total - 1) // 2
    )
    fits(2, permuted, "not an order of the samples")
    return GPTIndex(doc_idx, sample_idx, shuffle_idx)  # type: ignore[arg-type]


def load_or_build(
    prefix: Path,
    split: str,
    sizes: npt.NDArray[np.int32],
    documents: npt.NDArray[np.int32],
    samples: int,
    seq_length: int,
    seed: int,
    *,
    directory: Path | None,
    maps: MapMaker,
) -> GPTIndex:
    """Read the maps of a split; make them first if one is missing.

    Args:
        prefix: Prefix of the data set.
        split: ``train``, ``valid`` or ``test``.
        sizes: int32, tokens of every sequence of the data set.
        documents: int32, the sequences of this split.
        samples: Samples that are wanted.
        seq_length: Tokens per sample, less one.
        seed: Seed of the shuffles.
        directory: The maps' directory; None: next to the data.
        maps: Makes what is missing.

    Returns:
        The maps, mapped into memory.

    Raises:
        TrainerError: They cannot be made, written or read, or do not fit the data.
    """
    files = map_paths(prefix, split, samples, seq_length, seed, directory)

    def make(progress: Progress) -> Iterator[tuple[Path, npt.NDArray[np.generic]]]:
        arrays = _arrays(sizes, documents, samples, seq_length, seed)
        for number, (path, array) in enumerate(zip(files, arrays, strict=True), 1):
            yield path, array
            progress(number / len(files))

    def check() -> None:
        load(files, sizes, documents, samples, seq_length)

    maps.make(f"{prefix}, split {split}", files, make, check)
    return GPTIndex(*(read(path) for path in files))  # type: ignore[arg-type]
