# SPDX-License-Identifier: GPL-3.0-or-later
"""How many tokens' logits exist at once. The loss and the dry run ask; no torch here."""

from __future__ import annotations

__all__ = ["chunk_tokens"]

# Logits of one chunk, few enough chunks that adding up their weight gradients costs nothing: a GiB in 16 bits
# where the compiler fuses what is done with them; otherwise there are fp32 copies as well.
_ELEMENTS = {True: 1 << 29, False: 1 << 27}
# Numbers of chunks that are tried: a batch that no memory holds has more.
_TRIES = 10_000


def chunk_tokens(tokens: int, rows: int, *, compiled: bool, elements: int | None = None) -> int:
    """Return the tokens of a chunk: equal chunks where that is possible without halving them.

    Args:
        tokens: Of a micro-batch.
        rows: Of the vocabulary's matrix on this rank.
        compiled: The element-wise part of the loss is compiled.
        elements: Logits that may exist at once; as many as are fast by default.
    """
    most = max(1, (elements or _ELEMENTS[compiled]) // rows)
    fewest = -(-tokens // most)
    for chunks in range(fewest, min(2 * fewest, fewest + _TRIES)):
        if tokens % chunks == 0:
            return tokens // chunks
    return -(-tokens // fewest)
