# SPDX-License-Identifier: GPL-3.0-or-later
"""GPT-2's byte pairs at the speed of arrays.

Texts repeat their words. A hash table of arrays, keyed by a word's own bytes, keeps the tokens of each word,
so that a few array operations look up most of a text. Only new words go to the tokenizers library. The tokens
are therefore always the library's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from rdm_core.errors import TrainerError
from rdm_trainer.tokenizers.pretokens import cut, word_begin

# A word of up to this many bytes is its own key: two 64-bit numbers, the length in the last byte.
_SHORT = 15
SLOT_BITS = 20
# The most slots that are used, so that most words are found at the first probe.
MOST_WORDS = 1 << (SLOT_BITS - 1)
MOST_LONG_WORDS = 1 << 18
MOST_POOLED = 1 << 24
# Characters of one lookup: their arrays stay in the processor's cache.
BLOCK = 1 << 18
# GPT-2 writes each byte as a visible character; invisible ones become characters from 256 on, in order.
_SEEN = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_BYTE_CHARACTERS = {
    byte: 0x100 + number for number, byte in enumerate(byte for byte in range(0x100) if byte not in _SEEN)
}

_U64 = npt.NDArray[np.uint64]
_MULTIPLIERS = tuple(map(np.uint64, (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93)))
_BYTE_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(9)], np.uint64)


class GPT2Encoder:
    """Byte pairs of ``vocab.json`` and ``merges.txt``."""

    def __init__(self, vocab: Path, merges: Path) -> None:
        """Read the vocabulary.

        Raises:
            TrainerError: A file is not what it should be.
        """
        from tokenizers import ByteLevelBPETokenizer

        try:
            self._library = ByteLevelBPETokenizer(str(vocab), str(merges))
        except Exception as error:  # the library raises nothing more specific
            raise TrainerError(f"{vocab} and {merges} are no vocabulary of byte pairs ({error}).") from error
        self._byte_pairs = self._library._tokenizer.model.tokenize
        slots = 1 << SLOT_BITS
        self._low = np.zeros(slots, np.uint64)
        self._high = np.zeros(slots, np.uint64)
        self._count = np.zeros(slots, np.int32)  # tokens; 0 is a free slot
        self._first = np.zeros(slots, np.int64)  # in the pool
        self._claims = np.zeros(slots, np.int64)
        self._pool = np.zeros(1 << 18, np.int32)
        self._long: dict[bytes, tuple[int, int]] = {}
        self._begin()

    def _begin(self) -> None:
        """Forget all words but the vocabulary's own, which are most of a text."""
        self._count[:] = 0
        self._pooled = self._words = 0
        self._long.clear()
        tokens = self._library.get_vocab_size()
        self._encode([self._library.decode([number]) for number in range(tokens)])

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids."""
        text: str = self._library.decode(ids)
        return text

    def encode(self, texts: list[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Turn texts into tokens.

        Returns:
            The tokens of all texts, int32 [tokens], and the number of each text's tokens, int64 [texts].

        Raises:
            UnicodeEncodeError: A text has half of a surrogate pair, which is no character.
        """
        tokens = [np.empty(0, np.int32)]
        counts = [np.empty(0, np.int64)]
        block: list[str] = []
        characters = 0
        for text in texts:
            if len(text) > 2 * BLOCK:
                tokens += self._flush(block, counts)
                parts = [self._flush([part], []) for part in _pieces(text)]
                tokens += [part for pair in parts for part in pair]
                counts.append(np.array([sum(len(part) for pair in parts for part in pair)]))
                block, characters = [], 0
                continue
            block.append(text)
            characters += len(text)
            if characters >= BLOCK:
                tokens += self._flush(block, counts)
                block, characters = [], 0
        tokens += self._flush(block, counts)
        return np.concatenate(tokens), np.concatenate(counts)

    def _flush(self, block: list[str], counts: list[npt.NDArray[np.int64]]) -> list[npt.NDArray[np.int32]]:
        """Return a block's tokens in a list, and append the number of each text's tokens to the counts."""
        if not block:
            return []
        if (
            self._words > MOST_WORDS - (1 << 16)
            or len(self._long) > MOST_LONG_WORDS
            or self._pooled > MOST_POOLED
        ):
            self._begin()
        tokens, per_text = self._encode(block)
        counts.append(per_text)
        return [tokens]

    def _encode(self, texts: list[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        words = cut(texts)
        starts = words.starts[:-1]
        lengths = words.starts[1:] - starts
        low, high = _keys(words.data, starts, lengths)
        slots, found = self._find(low, high)
        count = self._count[slots]
        first = self._first[slots]

        long = lengths > _SHORT
        missing = np.flatnonzero(~found | long)
        if len(missing):
            data = words.data
            begins = starts[missing]
            texts_missing = [
                data[a:b] for a, b in zip(begins.tolist(), (begins + lengths[missing]).tolist(), strict=True)
            ]
            count[missing], first[missing] = self._new(texts_missing, missing, low, high, long)
        count[words.ends] = 0

        total = np.cumsum(count, dtype=np.int64)
        where = np.repeat(first - (total - count), count)
        where += np.arange(len(where))
        per_text = np.diff(total[words.ends], prepend=0)
        return self._pool[where], per_text

    def _new(
        self,
        texts: list[bytes],
        missing: npt.NDArray[np.int64],
        low: _U64,
        high: _U64,
        long: npt.NDArray[np.bool_],
    ) -> tuple[list[int], list[int]]:
        """Encode words that the table lacks; return the number of each word's tokens, and where they begin.

        Args:
            texts: The words.
            missing: Their positions in the arrays that follow.
            low: First halves of the keys.
            high: Second halves.
            long: Words too long for a key.
        """
        known: dict[bytes, tuple[int, int]] = {}
        unknown: dict[bytes, int] = {}
        for number, text in enumerate(texts):
            place = self._long.get(text)
            if place is not None:
                known[text] = place
            else:
                unknown.setdefault(text, number)
        if unknown:
            keep: list[int] = []
            for text, number in unknown.items():
                pairs = self._byte_pairs(text.decode("latin-1").translate(_BYTE_CHARACTERS))
                place = known[text] = self._store([token.id for token in pairs])
                if long[missing[number]]:
                    self._long[text] = place
                else:
                    keep.append(number)
            keep = keep[: MOST_WORDS - self._words]
            if keep:
                places = [known[texts[number]] for number in keep]
                rows = missing[keep]
                self._insert(low[rows], high[rows], [n for n, _ in places], [f for _, f in places])
        found = [known[text] for text in texts]
        return [n for n, _ in found], [f for _, f in found]

    def _store(self, ids: list[int]) -> tuple[int, int]:
        """Append token ids to the pool; return their number and where they begin."""
        end = self._pooled + len(ids)
        if end > len(self._pool):
            self._pool = np.concatenate((self._pool, np.zeros(max(len(self._pool), len(ids)), np.int32)))
        self._pool[self._pooled : end] = ids
        place = (len(ids), self._pooled)
        self._pooled = end
        return place

    def _find(self, low: _U64, high: _U64) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Look words up.

        Returns:
            The slot of each word, and whether the word is there.
        """
        slots = _hash(low, high)
        found = (self._low[slots] == low) & (self._high[slots] == high)
        pending = np.flatnonzero(~found)
        pending = pending[self._count[slots[pending]] > 0]
        while len(pending):
            at = (slots[pending] + 1) & ((1 << SLOT_BITS) - 1)
            slots[pending] = at
            same = (self._low[at] == low[pending]) & (self._high[at] == high[pending])
            found[pending[same]] = True
            pending = pending[~same & (self._count[at] > 0)]
        # A free slot looks like a word of zeros.
        found &= self._count[slots] > 0
        return slots, found

    def _insert(self, low: _U64, high: _U64, counts: list[int], firsts: list[int]) -> None:
        """Put new words, all different, into the first free slots from their hashes on."""
        slots = _hash(low, high)
        pending = np.arange(len(slots))
        count, first = np.array(counts, np.int32), np.array(firsts, np.int64)
        while len(pending):
            at = slots[pending]
            free = self._count[at] == 0
            self._claims[at[free]] = pending[free]
            won = free & (self._claims[at] == pending)
            rows, place = pending[won], at[won]
            self._low[place], self._high[place] = low[rows], high[rows]
            self._count[place], self._first[place] = count[rows], first[rows]
            pending = pending[~won]
            slots[pending] = (slots[pending] + 1) & ((1 << SLOT_BITS) - 1)
        self._words += len(slots)


def _pieces(text: str) -> list[str]:
    """Cut a long text where that does not change its tokens."""
    pieces, begin = [], 0
    while len(text) - begin > BLOCK and (end := word_begin(text, begin + BLOCK)) is not None:
        pieces.append(text[begin:end])
        begin = end
    return [*pieces, text[begin:]]


def _keys(data: bytes, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> tuple[_U64, _U64]:
    """Return the keys of words.

    Args:
        data: The text.
        starts: The first byte of each word, [words].
        lengths: Its bytes.

    Returns:
        Each word's first eight bytes, and its next seven followed by its length; undefined for longer words.
    """
    words = np.frombuffer(data + bytes(24 + -len(data) % 8), "<u8")
    at = starts >> 3
    shift = ((starts & 7) << 3).astype(np.uint64)
    # Two shifts, since one by 64 is not defined.
    back = np.uint64(63) - shift
    one = np.uint64(1)
    first, second, third = words[at], words[at + 1], words[at + 2]
    low = (first >> shift) | ((second << one) << back)
    high = (second >> shift) | ((third << one) << back)
    low &= _BYTE_MASKS[np.minimum(lengths, 8)]
    high &= _BYTE_MASKS[np.clip(lengths - 8, 0, 7)]
    high |= np.minimum(lengths, 255).astype(np.uint64) << np.uint64(56)
    return low, high


def _hash(low: _U64, high: _U64) -> npt.NDArray[np.int64]:
    """Return the slot at which the search for a word begins."""
    mixed = (low * _MULTIPLIERS[0]) ^ (high * _MULTIPLIERS[1])
    mixed ^= mixed >> np.uint64(32)
    mixed *= _MULTIPLIERS[2]
    return (mixed >> np.uint64(64 - SLOT_BITS)).astype(np.int64)
