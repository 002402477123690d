"""Files that are complete at every moment."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file so that no reader sees a part of it.

    It is not synced: it may not be on the disk yet when this returns.

    Raises:
        OSError: It cannot be written; an earlier file is unchanged.
    """
    # Containers that share the directory may have the same process ids.
    partial = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
            file.write(text)
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
