# SPDX-License-Identifier: GPL-3.0-or-later
"""Marked blocks in files that are not ours.

A block stands between `# BEGIN rdm-provision NAME` and `# END rdm-provision NAME`. Removing a block restores
the file to the byte. The END line has a newline, so that text which another program appends starts a new
line; if the file had no newline at its end, a line in the block notes it.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._()-]*")
_NO_NEWLINE = b"# The file had no newline at its end.\n"
_MARKER = re.compile(rb"(?m)^# (?:BEGIN|END) rdm-provision ")


class BlockError(ValueError):
    """A block cannot be written or found; the text is one sentence."""


def put_block(data: bytes | None, name: str, content: str, at_start: bool = False) -> bytes:
    """Return the file's bytes with the block in them.

    An existing block is replaced in place.

    Args:
        data: the file's content; None if there is no file.
        name: the block's name: letters, digits, space and ._()-.
        content: the lines between the markers.
        at_start: put a new block at the file's start instead of its end.

    Raises:
        BlockError: an unusable name or content, or a marker without its partner.
    """
    span = _find(data, name) if data is not None else None
    if data is not None and span is not None:
        unended = _had_no_newline(data, span)
        return data[: span[0]] + _render(name, content, unended) + data[span[1] + 1 :]
    if data is None or (at_start and data):
        return _render(name, content) + (data or b"")
    if data.endswith(b"\n"):
        return data + _render(name, content, unended=_ends_unended(data))
    return data + (b"\n" if data else b"") + _render(name, content, unended=True)


def drop_block(data: bytes, name: str) -> bytes | None:
    """Return the file's bytes without the block; None if the file was created for it and is empty then.

    Raises:
        BlockError: an unusable name, or a marker without its partner.
    """
    span = _find(data, name)
    if span is None:
        return data
    before, after = data[: span[0]], data[span[1] + 1 :]
    if not after and _had_no_newline(data, span) and not _ends_unended(before):
        return before[:-1]
    return before + after or None


def read_block(data: bytes, name: str) -> bytes | None:
    """Return the block with its markers; None if there is none.

    Raises:
        BlockError: an unusable name, or a marker without its partner.
    """
    span = _find(data, name)
    return None if span is None else data[span[0] : span[1]]


def _markers(name: str) -> tuple[bytes, bytes]:
    if not _NAME.fullmatch(name):
        raise BlockError(
            "{0!r} cannot name a block: letters, digits, space and ._()- are possible".format(name)
        )
    return "# BEGIN rdm-provision {0}".format(name).encode(), "# END rdm-provision {0}".format(name).encode()


def _render(name: str, content: str, unended: bool = False) -> bytes:
    begin, end = _markers(name)
    body = content.encode()
    if _MARKER.search(body):
        raise BlockError("the content of block {0!r} has a marker line of its own".format(name))
    if body and not body.endswith(b"\n"):
        body += b"\n"
    return begin + b"\n" + body + (_NO_NEWLINE if unended else b"") + end + b"\n"


def _had_no_newline(data: bytes, span: tuple[int, int]) -> bool:
    """Whether the file had no newline at its end before the block was added.

    Up to version 0.6 the END line of such a block had none.
    """
    return span[1] == len(data) or _ends_unended(data[span[0] : span[1] + 1])


def _ends_unended(data: bytes) -> bool:
    """Whether the data ends with a block that notes a missing newline."""
    before, _, last = data.rpartition(b"\n# END rdm-provision ")
    return last.endswith(b"\n") and last.count(b"\n") == 1 and before.endswith(_NO_NEWLINE[:-1])


def _find(data: bytes, name: str) -> tuple[int, int] | None:
    """Return the offsets of the block's start and of the end of its END line, without the newline."""
    begin, end = _markers(name)
    begins = _lines(data, begin)
    ends = _lines(data, end)
    if not begins and not ends:
        return None
    if len(begins) != 1 or len(ends) != 1 or begins[0] > ends[0]:
        raise BlockError(
            "block {0!r} has {1} BEGIN and {2} END lines where one of each belongs: "
            "repair the file by hand".format(name, len(begins), len(ends))
        )
    return begins[0], ends[0] + len(end)


def _lines(data: bytes, line: bytes) -> list[int]:
    """Return the offset of each line that is exactly this one."""
    return [match.start() for match in re.finditer(rb"(?m)^" + re.escape(line) + rb"$", data)]
