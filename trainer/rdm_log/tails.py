# SPDX-License-Identifier: GPL-3.0-or-later
"""The ends of logs, and how many lines they have."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

from rdm_log.scan import END, read, regular, with_pieces

__all__ = ["count_lines", "tail", "text_lines"]


def tail(path: Path, lines: int, *, most: int = 64 * 1024, since: int = 0) -> list[str]:
    """Return the last lines of a log.

    Of a log that was rotated a moment ago they are in its newest piece.

    Args:
        path: The log.
        lines: How many.
        most: Only of so many bytes at its end.
        since: Only of what is beyond this byte.
    """
    text = b""
    for file in reversed(with_pieces(path)[-2:]):
        with contextlib.suppress(OSError), regular(file).open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            # It was shorter then, and is now another one.
            begin = since if since <= size else 0
            opened.seek(max(begin, size - (most - len(text))))
            text = opened.read(most - len(text)) + text
        if (since and begin == since) or len(text) >= most:
            break
    return text.decode("utf-8", "replace").splitlines()[-lines:] if lines else []


def count_lines(path: Path) -> int:
    """Return how many newlines a log and its pieces have, as ``wc -l`` does; 0 when it cannot be read."""
    try:
        return sum(block.count(b"\n") for block in read(list(map(regular, with_pieces(path)))))
    except OSError:
        return 0


def text_lines(path: Path, *, begin: int = 0, end: int = END) -> Iterator[str]:
    """Yield the lines of a log and its pieces, in bounded memory.

    Args:
        path: The log.
        begin: The first byte, counted over all pieces; it may be within a line.
        end: The byte behind the last.

    Raises:
        OSError: It cannot be read.
    """
    rest = ""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    for block in read(list(map(regular, with_pieces(path))), begin=begin, end=end):
        *lines, rest = (rest + decoder.decode(block)).split("\n")
        yield from (f"{line}\n" for line in lines)
    if rest:
        yield rest
