# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes files atomically: a reader sees the old file or the new one.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Callable, Optional

TEMPORARY = ".rdm-provision-"
"""Prefix of the names of temporary files."""


def write_whole(
    path: str,
    content: bytes,
    mode: int,
    own: Optional[Callable[[int], object]] = None,
    durable: bool = True,
) -> None:
    """Write a file in one step, and its directory if that is missing.

    Args:
        path: the file; a link is replaced, not followed.
        content: the whole content.
        mode: its permissions; the temporary file never has more.
        own: sets the owner, given the file descriptor; None: the file belongs to this process's user.
        durable: whether to sync it to disk before this returns.

    Raises:
        OSError: the file cannot be written; it is unchanged, and the error names it.
    """
    directory = os.path.dirname(path) or "."
    os.makedirs(directory, mode=0o755, exist_ok=True)
    try:
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
            with contextlib.suppress(OSError):  # report the first error
                os.unlink(temporary)
            raise
    except OSError as error:  # which would name the temporary file
        raise OSError(error.errno, error.strerror, path) from error
