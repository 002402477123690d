# SPDX-License-Identifier: GPL-3.0-or-later
"""Marked blocks in files that belong to somebody else.

A block stands between `# BEGIN rdm-provision NAME` and `# END rdm-provision NAME`. Putting one in and taking
it out again gives back the file as it was, to the byte, whatever it held and however it ended. For that, the
newline after the END line carries one bit: it is left out where the file had no newline at its end.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._()-]*")
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
    block = _render(name, content)
    if data is None:
        return block + b"\n"
    place = _find(data, name)
    if place is not None:
        return data[: place[0]] + block + data[place[1] :]
    if at_start and data:
        return block + b"\n" + data
    if data.endswith(b"\n"):
        return data + block + b"\n"
    return data + (b"\n" if data else b"") + block


def drop_block(data: bytes, name: str) -> bytes | None:
    """Return the file's bytes without the block; None when the block was all of a file made for it.

    Raises:
        BlockError: an unusable name, or a marker without its partner.
    """
    place = _find(data, name)
    if place is None:
        return data
    before, after = data[: place[0]], data[place[1] :]
    if not after:
        # No newline after the END line: there was none at the end of the file before the block came.
        return before[:-1] if before.endswith(b"\n") else before
    return before + after[1:] or None


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


def _render(name: str, content: str) -> bytes:
    begin, end = _markers(name)
    body = content.encode()
    if _MARKER.search(body):
        raise BlockError("the content of block {0!r} has a marker line of its own".format(name))
    if body and not body.endswith(b"\n"):
        body += b"\n"
    return begin + b"\n" + body + end


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
