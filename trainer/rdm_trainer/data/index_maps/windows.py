# SPDX-License-Identifier: GPL-3.0-or-later
"""The map by which a T5 reads documents that were not split into sentences.

One ``.npy`` next to the data, a row per sample: a sequence of the data set, the first token in it, and the
number of tokens. Megatron's own map would make one sample of each document, with only its beginning. Here a
document is cut into consecutive windows, each as long as a sample may be, and a last one with the rest; one
window in ``1 / short_sequence_probability`` is cut in two. So an epoch has every token once, except for a
last window of a single token, which cannot make a sample.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from rdm_core.errors import TrainerError

# A sample needs a token to keep and one to mask.
SHORTEST = 2


def are_needed(sizes: npt.NDArray[np.int32], document_index: npt.NDArray[np.int64], seq_length: int) -> bool:
    """Return whether documents are single sequences and some of these are longer than a sample.

    Args:
        sizes: int32, tokens of every sequence of the data set.
        document_index: int64 [documents + 1], where each document begins, counted in sequences.
        seq_length: The most tokens of a sample.
    """
    return bool((np.diff(document_index) <= 1).all() and (sizes > seq_length).any())


def build(
    sizes: npt.NDArray[np.int32],
    sequences: npt.NDArray[np.int64],
    samples: int,
    seq_length: int,
    short_probability: float,
    seed: int,
) -> npt.NDArray[np.int64]:
    """Compute the map.

    Args:
        sizes: int32, tokens of every sequence of the data set.
        sequences: int64, the sequences of this split.
        samples: Samples that are wanted; the epoch that reaches them is completed.
        seq_length: Tokens of a window.
        short_probability: Share of the windows that are cut in two.
        seed: Seed of the cuts and the order.

    Returns:
        int64 [rows, 3], shuffled.

    Raises:
        TrainerError: No document makes a sample.
    """
    tokens = sizes[sequences].astype(np.int64)
    per_document = -(-tokens // seq_length)
    owner = np.repeat(np.arange(len(sequences)), per_document)
    first_window = np.cumsum(per_document) - per_document
    offset = (np.arange(len(owner)) - first_window[owner]) * seq_length
    whole = np.stack((sequences[owner], offset, np.minimum(tokens[owner] - offset, seq_length)), axis=1)
    whole = whole[whole[:, 2] >= SHORTEST]
    if not len(whole):
        raise TrainerError(f"no document has {SHORTEST} tokens, which a sample needs.")
    random = np.random.RandomState(seed % 2**32)
    epochs, rows = [], 0
    while rows < samples:
        epochs.append(_cut(whole, short_probability, random))
        rows += len(epochs[-1])
    table = np.concatenate(epochs) if epochs else whole[:0]
    return table[random.permutation(len(table))]


def _cut(
    windows: npt.NDArray[np.int64], probability: float, random: np.random.RandomState
) -> npt.NDArray[np.int64]:
    """Return the windows, some of them cut in two."""
    length = windows[:, 2]
    cut = (random.random_sample(len(windows)) < probability) & (length >= 2 * SHORTEST)
    room = length - 2 * SHORTEST + 1
    left = SHORTEST + (random.random_sample(len(windows)) * room).astype(np.int64)
    heads = windows.copy()
    heads[cut, 2] = left[cut]
    tails = windows[cut]
    tails[:, 1] += left[cut]
    tails[:, 2] -= left[cut]
    return np.concatenate((heads, tails))


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
        f"{prefix.name}_{split}_windowmap_{samples}ns_{seq_length}sl_{short_probability:.2f}ssp_{seed}s.npy"
    )


def fits(
    table: npt.NDArray[np.generic],
    sizes: npt.NDArray[np.int32],
    sequences: npt.NDArray[np.int64],
    samples: int,
    seq_length: int,
) -> bool:
    """Return whether each row is a window of a sequence of this split; arguments as of :func:`build`."""
    if table.dtype != np.int64 or table.ndim != 2 or table.shape[1] != 3 or len(table) < samples:
        return False
    if not len(table):
        return True
    number, offset, length = table.T.astype(np.int64)
    if number.min() < sequences[0] or number.max() > sequences[-1]:
        return False
    inside = (offset >= 0) & (length >= SHORTEST) & (length <= seq_length)
    return bool((inside & (offset + length <= sizes[number])).all())
