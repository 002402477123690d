"""Files that are whole at every moment."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file so that no reader sees half of it.

    It need not be on the disk when this returns.

    Raises:
        OSError: It cannot be written; what was there is as it was.
    """
    # Processes in containers have the same numbers, and may share the directory.
    partial = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
            file.write(text)
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
