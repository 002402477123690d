# SPDX-License-Identifier: GPL-3.0-or-later
"""Marked blocks in files that belong to somebody else.

A block stands between `# BEGIN rdm-provision NAME` and `# END rdm-provision NAME`. Putting one in and taking
it out again gives back the file as it was, to the byte, whatever it held and however it ended. The END line
has a newline, so that what another program appends does not run into it; a line in the block notes that the
file had none at its end.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._()-]*")
_NO_NEWLINE = b"# The file had no newline at its end.\n"
_MARKER = re.compile(rb"(?m)^# (?:BEGIN|END) rdm-provision ")


class BlockError(ValueError):
    """A block that cannot be written or found; the text is one sentence."""


def put_block(data: bytes | None, name: str, content: str, at_start: bool = False) -> bytes:
    """Return the file's bytes with the block in them.

    A block that is there already is replaced where it stands.

    Args:
        data: what the file holds; None when there is no file.
        name: names the block; letters, digits, space and ._()-.
        content: the lines between the markers.
        at_start: put a new block before everything else instead of after it.

    Raises:
        BlockError: an unusable name or content, or a marker without its partner.
    """
    place = _find(data, name) if data is not None else None
    if data is not None and place is not None:
        unended = _had_no_newline(data, place)
        return data[: place[0]] + _render(name, content, unended) + data[place[1] + 1 :]
    if data is None or (at_start and data):
        return _render(name, content) + (data or b"")
    if data.endswith(b"\n"):
        return data + _render(name, content, unended=_ends_unended(data))
    return data + (b"\n" if data else b"") + _render(name, content, unended=True)


def drop_block(data: bytes, name: str) -> bytes | None:
    """Return the file's bytes without the block; None when the block was all of a file made for it.

    Raises:
        BlockError: an unusable name, or a marker without its partner.
    """
    place = _find(data, name)
    if place is None:
        return data
    before, after = data[: place[0]], data[place[1] + 1 :]
    if not after and _had_no_newline(data, place) and not _ends_unended(before):
        return before[:-1]
    return before + after or None


def read_block(data: bytes, name: str) -> bytes | None:
    """Return the block with its markers, None when there is none.

    Raises:
        BlockError: an unusable name, or a marker without its partner.
    """
    place = _find(data, name)
    return None if place is None else data[place[0] : place[1]]


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


def _had_no_newline(data: bytes, place: tuple[int, int]) -> bool:
    """Whether the file had no newline at its end before the block came.

    Up to version 0.6 the END line of such a block had none.
    """
    return place[1] == len(data) or _ends_unended(data[place[0] : place[1] + 1])


def _ends_unended(data: bytes) -> bool:
    """Whether data end with a block that notes a missing newline."""
    before, _, last = data.rpartition(b"\n# END rdm-provision ")
    return last.endswith(b"\n") and last.count(b"\n") == 1 and before.endswith(_NO_NEWLINE[:-1])


def _find(data: bytes, name: str) -> tuple[int, int] | None:
    """Return where the block begins and where its END line ends, its newline left out."""
    begin, end = _markers(name)
    begins = _lines(data, begin)
    ends = _lines(data, end)
    if not begins and not ends:
        return None
    if len(begins) != 1 or len(ends) != 1 or begins[0] > ends[0]:
        raise BlockError(
            "block {0!r} has {1} BEGIN and {2} END lines where one of each belongs: "
            "mend the file by hand".format(name, len(begins), len(ends))
        )
    return begins[0], ends[0] + len(end)


def _lines(data: bytes, line: bytes) -> list[int]:
    """Return where each line that is exactly this one begins."""
    return [match.start() for match in re.finditer(rb"(?m)^" + re.escape(line) + rb"$", data)]
