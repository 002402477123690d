# SPDX-License-Identifier: GPL-3.0-or-later
"""The last lines, all lines, and the number of lines of logs."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

from rdm_log.scan import END, read, regular, with_pieces


def tail(path: Path, lines: int, *, most: int = 64 * 1024, since: int = 0) -> list[str]:
    """Return the last lines of a log, also if it was just rotated.

    Args:
        path: The log.
        lines: How many.
        most: Read at most this many bytes at its end.
        since: Ignore everything before this byte.
    """
    text = b""
    for file in reversed(with_pieces(path)[-2:]):
        with contextlib.suppress(OSError), regular(file).open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            # A file shorter than this is another one, after a rotation.
            begin = since if since <= size else 0
            opened.seek(max(begin, size - (most - len(text))))
            text = opened.read(most - len(text)) + text
        if (since and begin == since) or len(text) >= most:
            break
    return text.decode("utf-8", "replace").splitlines()[-lines:] if lines else []


def count_lines(path: Path) -> int:
    """Return the number of newlines in a log and its pieces, like ``wc -l``; 0 if it cannot be read."""
    try:
        return sum(block.count(b"\n") for block in read(list(map(regular, with_pieces(path)))))
    except OSError:
        return 0


def text_lines(path: Path, *, begin: int = 0, end: int = END) -> Iterator[str]:
    """Yield the lines of a log and its pieces, in bounded memory.

    Args:
        path: The log.
        begin: The first byte, counted over all pieces; it may be within a line.
        end: The byte after the last.

    Raises:
        OSError: A file cannot be read.
    """
    rest = ""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    for block in read(list(map(regular, with_pieces(path))), begin=begin, end=end):
        *lines, rest = (rest + decoder.decode(block)).split("\n")
        yield from (f"{line}\n" for line in lines)
    if rest:
        yield rest
