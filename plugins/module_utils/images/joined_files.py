# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of a node that go to other nodes as one archive: one file after another, without a copy on the disk.

This runs on nodes (Python 3.8 or newer), and `layout` on the controller as well.
"""

from __future__ import annotations

import os
from typing import IO, Dict, Iterator, Mapping, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.base.no_symlinks import open_file
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import (
    PieceFile,
    PieceList,
    hash_pieces,
)


def layout(sizes: Mapping[str, int]) -> Dict[str, Tuple[int, int, str]]:
    """Return where each file begins and ends in the archive: `PieceList.layers`, without digests."""
    found = {}
    end = 0
    for path in sorted(sizes):
        begin, end = end, end + int(sizes[path])
        found[path] = begin, end, ""
    return found


def joined_pieces(directory: str, sizes: Mapping[str, int]) -> PieceList:
    """Read the files once, and return the pieces of their archive.

    Args:
        directory: an absolute path.
        sizes: relative path of each file -> its bytes.

    Raises:
        NodeError: a file is missing, has another size, or cannot be read.
    """
    members = layout(sizes)

    def read(begin: int, length: int) -> bytes:
        parts = []
        for stream, offset, count in streams(directory, members, begin, length):
            with stream:
                parts.append(os.pread(stream.fileno(), count, offset))
        return b"".join(parts)

    try:
        return hash_pieces(sum(map(int, sizes.values())), members, read)
    except EOFError:
        raise NodeError("a file of {0} was changed while it was read".format(directory)) from None


def streams(
    directory: str, members: Mapping[str, Tuple[int, int, str]], begin: int, length: int
) -> Iterator[Tuple[IO[bytes], int, int]]:
    """Yield the parts of files that make a part of the archive: the open file, offset and bytes.

    Raises:
        NodeError: as for `joined_pieces`.
    """
    for path, (first, end, _sha256) in members.items():
        start, stop = max(begin, first), min(begin + length, end)
        if start >= stop:
            continue
        whole = "{0}/{1}".format(directory, path)
        stream = open_file("/", whole, end - first)
        if stream is None:
            raise NodeError("{0} cannot be read: it was changed, or this user may not read it".format(whole))
        yield stream, start - first, stop - start


class JoinedFiles(PieceFile):
    """The pieces of files at their source; `path` is their directory.

    The files are opened for each piece that is sent: there may be more than a process can keep open.
    """

    def streams(self, begin: int, length: int) -> Iterator[Tuple[IO[bytes], int, int]]:
        """Yield the open files that have a part of the archive, with offset and bytes.

        Raises:
            OSError: one of them is no longer as it was.
        """
        try:
            yield from streams(self.path, self.pieces.layers, begin, length)
        except NodeError as error:
            raise OSError(str(error)) from None
