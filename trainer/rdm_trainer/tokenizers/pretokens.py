# SPDX-License-Identifier: GPL-3.0-or-later
r"""GPT-2's cutting of text into words, for many documents at once and without a regular expression.

The pattern ``'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`` says: a
word is a run of letters, of numbers or of other characters, with one space before it; of the white space
before a word the last character stands apart; an apostrophe takes the end of a contraction with it. Where the
classes of neighbours differ, runs begin; the rest are corrections at those places, all done by arrays.

Source: A. Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), and its code's
pattern.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Pretokens", "cut", "word_begin"]

# Classes of characters. END stands behind each document.
OTHER, LETTER, NUMBER, SPACE, END = range(5)
CODE_POINTS = 0x110000
UNKNOWN = 255
# The surrogates, which no text has, fill whole parts of this many code points.
PART = 0x800
SEPARATOR = "\n"
# Characters in which a place to cut is looked for at a time.
WINDOW = 1 << 12


@dataclass(frozen=True)
class Pretokens:
    """Words of several documents.

    Attributes:
        data: The documents as UTF-8, a separator behind each.
        starts: int64 [words + 1], the byte at which each word begins; the last is the length of ``data``.
        ends: int64 [documents], which of the words are separators.
    """

    data: bytes
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


class _Classes:
    """The class of each code point, as the tokenizers library sees it; asked for when first met.

    Its regular expressions have tables of a Unicode release of their own, which need not be Python's.
    """

    def __init__(self) -> None:
        self._table = np.full(CODE_POINTS, UNKNOWN, np.uint8)
        self._ascii = b""

    def of_ascii(self, data: bytes) -> npt.NDArray[np.uint8]:
        """Return the classes of characters, [len(data)]."""
        if not self._ascii:
            self._learn(0)
            self._ascii = self._table[:256].tobytes()
        return np.frombuffer(bytearray(data.translate(self._ascii)), np.uint8)

    def of(self, points: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        """Return the classes of code points, [characters]."""
        kinds = self._table[points]
        unknown = kinds == UNKNOWN
        if unknown.any():
            for part in np.unique(points[unknown] // PART).tolist():
                self._learn(part * PART)
            kinds = self._table[points]
        return kinds

    def _learn(self, begin: int) -> None:
        """Fill in the classes from a code point on."""
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import Split

        text = "".join(map(chr, range(begin, begin + PART)))
        self._table[begin : begin + PART] = OTHER
        for kind, pattern in ((LETTER, r"\p{L}+"), (NUMBER, r"\p{N}+"), (SPACE, r"\s+")):
            # What does not match is left.
            matches = np.ones(PART, bool)
            for _, (first, last) in Split(Regex(pattern), "removed").pre_tokenize_str(text):
                matches[first:last] = False
            self._table[begin : begin + PART][matches] = kind


_classes = _Classes()


def cut(texts: list[str]) -> Pretokens:
    """Cut documents into words.

    Args:
        texts: The documents.

    Returns:
        Their words.

    Raises:
        UnicodeEncodeError: A text has half of a surrogate pair, which is no character.
    """
    joined = SEPARATOR.join(texts) + SEPARATOR
    data = joined.encode()
    ends_at = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1) - 1
    points: npt.NDArray[np.integer]
    offsets = None
    if len(data) == len(joined):
        points = np.frombuffer(data, np.uint8)
        kinds = _classes.of_ascii(data)
    else:
        wide: npt.NDArray[np.uint32] = np.frombuffer(joined.encode("utf-32-le"), "<u4")
        points = wide
        kinds = _classes.of(wide)
        lengths = (
            1
            + (points > 0x7F).astype(np.int64)
            + (points > 0x7FF).astype(np.int64)
            + (points > 0xFFFF).astype(np.int64)
        )
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    kinds[ends_at] = END
    begins = _begins(points, kinds)
    ends = np.searchsorted(begins, ends_at)
    starts = np.append(begins, len(points))
    return Pretokens(data, starts if offsets is None else offsets[starts], ends)


def word_begin(text: str, after: int) -> int | None:
    """Find where a word begins, whatever surrounds it.

    Behind a character that is no white space, a run of another class is always a word of its own, unless an
    apostrophe stands before it. So the words on both sides are the same when the text is cut there.

    Args:
        text: Of one document.
        after: The first place that will do; not the beginning.

    Returns:
        The first such place; None where there is none.
    """
    for begin in range(after, len(text), WINDOW):
        window = text[begin - 1 : begin + WINDOW]
        points: npt.NDArray[np.uint32] = np.frombuffer(window.encode("utf-32-le"), "<u4")
        kinds = _classes.of(points)
        found = (kinds[:-1] < SPACE) & (kinds[1:] != kinds[:-1]) & (points[:-1] != ord("'"))
        if found.any():
            return begin + int(found.argmax())
    return None


def _begins(points: npt.NDArray[np.integer], kinds: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Where words begin.

    Args:
        points: [characters], code points.
        kinds: [characters], their classes, the last one END.
    """
    begin = np.empty(len(points), bool)
    begin[0] = True
    np.not_equal(kinds[1:], kinds[:-1], out=begin[1:])
    runs = np.flatnonzero(begin)
    kind = kinds[runs]
    begin |= kinds == END

    # White space before a word: its last character stands apart, and is the word's when it is a space.
    after_space = np.flatnonzero((kind[1:] < SPACE) & (kind[:-1] == SPACE)) + 1
    words = runs[after_space]
    begin[words - 1] = True
    begin[words] = points[words - 1] != ord(" ")

    # An apostrophe alone, no space before it, and letters behind it.
    alone = np.flatnonzero((kind[:-1] == OTHER) & (kind[1:] == LETTER))
    at = runs[alone]
    joined = (at > 0) & (points[at - 1] == ord(" "))
    at = at[(runs[alone + 1] - at == 1) & (points[at] == ord("'")) & ~joined]
    first, second = points[at + 1], points[at + 2]
    one = np.isin(first, [ord(letter) for letter in "stmd"])
    two = np.isin(first, [ord("r"), ord("v")]) & (second == ord("e"))
    two |= (first == ord("l")) & (second == ord("l"))
    begin[at[one | two] + 1] = False
    begin[at[one] + 2] = True
    begin[at[two] + 3] = True
    return np.flatnonzero(begin)
