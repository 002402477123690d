# SPDX-License-Identifier: GPL-3.0-or-later
r"""Cut text into GPT-2's words, for many documents at once and without a regular expression.

The pattern ``'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`` means: a
word is a run of letters, of numbers or of other characters, with one space before it. Of the white space
before a word, the last character is separate. An apostrophe belongs to the end of a contraction. Runs begin
where neighbours have different classes; then array operations correct these places.

Source: A. Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), and its code's
pattern.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Classes of characters. END follows each document.
OTHER, LETTER, NUMBER, SPACE, END = range(5)
_CODE_POINTS = 0x110000
_UNKNOWN = 255
# Code points are classified in parts of this size. The surrogates, which no text has, fill whole parts.
_PART = 0x800
_SEPARATOR = "\n"
# Characters that are searched at a time for a place to cut.
_WINDOW = 1 << 12


@dataclass(frozen=True)
class Pretokens:
    """Words of several documents.

    Attributes:
        data: The documents as UTF-8, a separator after each.
        starts: int64 [words + 1], the byte at which each word begins; the last is the length of ``data``.
        ends: int64 [documents], the numbers of the words that are separators.
    """

    data: bytes
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


class _Classes:
    """The class of each code point, as the tokenizers library sees it, computed when first needed.

    The library's regular expressions have their own Unicode release, which may differ from Python's.
    """

    def __init__(self) -> None:
        self._table = np.full(_CODE_POINTS, _UNKNOWN, np.uint8)
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
        unknown = kinds == _UNKNOWN
        if unknown.any():
            for part in np.unique(points[unknown] // _PART).tolist():
                self._learn(part * _PART)
            kinds = self._table[points]
        return kinds

    def _learn(self, begin: int) -> None:
        """Fill in the classes from a code point on."""
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import Split

        text = "".join(map(chr, range(begin, begin + _PART)))
        self._table[begin : begin + _PART] = OTHER
        for kind, pattern in ((LETTER, r"\p{L}+"), (NUMBER, r"\p{N}+"), (SPACE, r"\s+")):
            # Only what does not match is returned.
            matches = np.ones(_PART, bool)
            for _, (first, last) in Split(Regex(pattern), "removed").pre_tokenize_str(text):
                matches[first:last] = False
            self._table[begin : begin + _PART][matches] = kind


_classes = _Classes()


def cut(texts: list[str]) -> Pretokens:
    """Cut documents into words.

    Raises:
        UnicodeEncodeError: A text has half of a surrogate pair, which is no character.
    """
    joined = _SEPARATOR.join(texts) + _SEPARATOR
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
    """Find a place where a word begins, whatever surrounds it.

    After a character that is not white space, a run of another class always begins a word, unless an
    apostrophe precedes it. So a cut there leaves the words on both sides as they are.

    Args:
        text: Text of one document.
        after: The first place to consider; not the beginning.

    Returns:
        The first such place; None if there is none.
    """
    for begin in range(after, len(text), _WINDOW):
        window = text[begin - 1 : begin + _WINDOW]
        points: npt.NDArray[np.uint32] = np.frombuffer(window.encode("utf-32-le"), "<u4")
        kinds = _classes.of(points)
        found = (kinds[:-1] < SPACE) & (kinds[1:] != kinds[:-1]) & (points[:-1] != ord("'"))
        if found.any():
            return begin + int(found.argmax())
    return None


def _begins(points: npt.NDArray[np.integer], kinds: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return where words begin.

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

    # White space before a word: its last character is separate, and belongs to the word if it is a space.
    after_space = np.flatnonzero((kind[1:] < SPACE) & (kind[:-1] == SPACE)) + 1
    words = runs[after_space]
    begin[words - 1] = True
    begin[words] = points[words - 1] != ord(" ")

    # A single apostrophe with no space before it and letters after it.
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
