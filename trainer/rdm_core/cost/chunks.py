# SPDX-License-Identifier: GPL-3.0-or-later
"""The number of tokens whose logits exist at once, for the loss and the dry run. No torch here."""

from __future__ import annotations

# The most logits of one chunk, by whether the loss is compiled. Chunks are large, so that it costs little to
# add up their weight gradients: 2 GiB in 16 bits if compiled; otherwise there are fp32 copies as well.
_ELEMENTS = {True: 1 << 30, False: 1 << 27}
# The most numbers of chunks to try. Only a batch that fits no memory needs more.
_TRIES = 10_000


def chunk_tokens(tokens: int, rows: int, *, compiled: bool, elements: int | None = None) -> int:
    """Return the tokens of a chunk. Chunks are equal, unless that would halve them.

    Args:
        tokens: Tokens of a micro-batch.
        rows: Rows of the head's matrix on this rank.
        compiled: The element-wise part of the loss is compiled.
        elements: The most logits that may exist at once; by default, as many as are fast.
    """
    most = max(1, (elements or _ELEMENTS[compiled]) // rows)
    fewest = -(-tokens // most)
    for chunks in range(fewest, min(2 * fewest, fewest + _TRIES)):
        if tokens % chunks == 0:
            return tokens // chunks
    return -(-tokens // fewest)
