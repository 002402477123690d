# SPDX-License-Identifier: GPL-3.0-or-later
"""One file of a checkpoint, on the disk when it is written."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import IO, Any, cast

import torch

from rdm_trainer.checkpoint import files

__all__ = ["Sink", "write"]


class Sink:
    """A file that keeps its first error and takes the rest in silence.

    torch's archive writer answers an error with others while it unwinds; the first one is the cause.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write data unless a write failed before."""
        size = memoryview(data).nbytes
        if self.error is None:
            try:
                files.write_all(self._file, data)
            except OSError as error:
                self.error = error
        return size

    def flush(self) -> None:
        """Do nothing: the file is not buffered."""

    def close(self) -> None:
        """Do nothing: who opened the file closes it."""

    def tell(self) -> int:
        """Return where the file ends."""
        return self._file.tell()

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._file.fileno()


def write(state: Any, path: Path) -> int:
    """Write a state to a file, on the disk when this returns, and return its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Unbuffered: a buffer that cannot be written would complain a second time when the file is closed.
    with path.open("wb", buffering=0) as raw:
        sink = Sink(raw)
        torch.save(state, cast(IO[bytes], sink))
        if sink.error is not None:
            raise sink.error
        os.fsync(raw.fileno())
        return os.fstat(raw.fileno()).st_size
