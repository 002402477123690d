"""Files that are complete at every moment."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"
"""The end of the name of what is being written, or was when its writer was killed."""


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666, *, durable: bool = False) -> Iterator[BinaryIO]:
    """Open a file that gets its name when the block ends.

    No reader sees a part of it. After an exception, an earlier file is unchanged, and nothing is left of the
    new one.

    Args:
        path: The file.
        mode: Its permissions, less those that the umask takes.
        durable: Return only when it is on the disk.

    Raises:
        OSError: It cannot be written.
    """
    # Containers that share the directory may have the same host names and process ids.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}{PARTIAL}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        # A read-only file system rejects this even if there is nothing to remove.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def write_atomically(path: Path, text: str, mode: int = 0o644, *, durable: bool = False) -> None:
    """Write a text, in UTF-8, as :func:`replacing` does.

    Raises:
        OSError: It cannot be written; an earlier file is unchanged.
    """
    with replacing(path, mode, durable=durable) as file:
        file.write(text.encode())


def sync_directory(directory: Path) -> None:
    """Return when the names in a directory are on the disk, where the file system can do that."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
