# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes files that are whole at every moment.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Callable, Iterator, Optional

TEMPORARY = ".rdm-provision-"
"""How the names of files begin that one of our programs has not finished yet."""


def write_whole(
    path: str,
    content: bytes,
    mode: int,
    own: Optional[Callable[[int], object]] = None,
    durable: bool = True,
) -> None:
    """Write a file in one step. Its directory is made when it is missing.

    Args:
        path: the file; a link is replaced, not followed.
        content: all of it.
        mode: its permissions; it never has more than these.
        own: gives the open file its owner, by its handle; None leaves it to who writes it.
        durable: it is on the disk when this returns; not needed for what can be made again.

    Raises:
        OSError: it cannot be written, and the error names it; what was there is as it was.
    """
    directory = os.path.dirname(path) or "."
    os.makedirs(directory, mode=0o755, exist_ok=True)
    with _naming(path):
        _write_whole(path, directory, content, mode, own, durable)


def _write_whole(
    path: str,
    directory: str,
    content: bytes,
    mode: int,
    own: Optional[Callable[[int], object]],
    durable: bool,
) -> None:
    handle, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=directory)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            if own is not None:
                own(stream.fileno())
            os.fchmod(stream.fileno(), mode)
            if durable:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Let an error name the file that a user knows, and not the temporary one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
