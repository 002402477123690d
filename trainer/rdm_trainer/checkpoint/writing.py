# SPDX-License-Identifier: GPL-3.0-or-later
"""Durable writing of one checkpoint file."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import IO, Any, cast

import torch

from rdm_trainer.checkpoint import files


class Sink:
    """A file that keeps its first error and ignores all later writes.

    torch's archive writer raises further errors while it unwinds, but the first one is the cause.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write data unless an earlier write failed."""
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
        """Do nothing: the opener closes the file."""

    def tell(self) -> int:
        """Return the current position in the file."""
        return self._file.tell()

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._file.fileno()


def write(state: Any, path: Path) -> None:
    """Write a state to a file, and return once it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Unbuffered, because a buffer that cannot be written would raise a second error when the file closes.
    with path.open("wb", buffering=0) as raw:
        sink = Sink(raw)
        torch.save(state, cast(IO[bytes], sink))
        if sink.error is not None:
            raise sink.error
        os.fsync(raw.fileno())
