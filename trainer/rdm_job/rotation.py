# SPDX-License-Identifier: GPL-3.0-or-later
"""Log rotation: ``n1.out`` becomes ``n1.out.1``, that becomes ``n1.out.2``, and so on.

The job's processes keep their log open, so it is copied and truncated, like logrotate's ``copytruncate``.
They open it for appending, so they continue at its new end. Output between the end of the copy and the
truncation is lost.

Offsets count from the first byte ever written to a log. ``.n1.out.before`` holds the number of bytes that are
in rotated pieces or deleted; a reader that holds its lock never sees a rotation in progress.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rdm_job.agent_lock import NO_LOCKS
from rdm_log.scan import piece, read, with_pieces


def rotate(path: Path, most: int, keep: int) -> None:
    """Rotate a log if it is too long. A full disk does not end the job.

    Args:
        path: The log. No other process may rotate it.
        most: The limit in bytes; 0 for none.
        keep: How many pieces to keep.
    """
    partial = path.with_name(f".{path.name}.piece")
    try:
        if not most or path.stat().st_size <= most:
            return
        with path.open("r+b") as log, partial.open("wb") as copy:
            # fsync, because a network file system may report a full disk only then. The second pass copies
            # the output that arrived during the first, which may take long.
            for _ in range(2):
                shutil.copyfileobj(log, copy)
                copy.flush()
                os.fsync(copy.fileno())
            with _before(path, fcntl.LOCK_EX) as before:
                # Copy the rest without fsync, and truncate at once, so that as little output as possible is
                # lost. Rename nothing before all is copied.
                shutil.copyfileobj(log, copy)
                copy.flush()
                for number in range(keep - 1, 0, -1):
                    with contextlib.suppress(FileNotFoundError):
                        piece(path, number).replace(piece(path, number + 1))
                partial.replace(piece(path, 1))
                log.truncate(0)
                _notes(path).write_text(f"{before + copy.tell()}\n")
    except OSError:
        partial.unlink(missing_ok=True)


def end_of(path: Path) -> int:
    """Return the offset of a log's end; 0 if there is no log."""
    with contextlib.suppress(FileNotFoundError), _before(path, fcntl.LOCK_SH) as before:
        return before + path.stat().st_size
    return 0


def lines_from(path: Path, offset: int, most: int) -> tuple[bytes, int]:
    """Return whole lines of a log from an offset on, and the offset of the next one.

    Args:
        path: The log.
        offset: The offset where reading ended before. Lines that were deleted since are skipped; if records
            were thinned, reading continues at their end.
        most: The limit in bytes; a longer line is returned in parts.

    Raises:
        OSError: It cannot be read.
    """
    with _before(path, fcntl.LOCK_SH) as before:
        end = before + path.stat().st_size
        files = with_pieces(path)
        first = before - sum(file.stat().st_size for file in files[:-1])
        offset = max(first, min(offset, end))
        data = b"".join(read(files, begin=offset - first, end=offset - first + most))
    whole = data.rfind(b"\n") + 1 or (len(data) if len(data) == most else 0)
    return data[:whole], offset + whole


def _notes(path: Path) -> Path:
    return path.with_name(f".{path.name}.before")


@contextlib.contextmanager
def _before(path: Path, lock: int) -> Iterator[int]:
    """Hold the lock, and yield how many bytes precede the log."""
    kind = os.O_RDWR | os.O_CREAT if lock == fcntl.LOCK_EX else os.O_RDONLY
    try:
        file = os.open(_notes(path), kind, 0o644)
    except FileNotFoundError:
        # The log was never rotated.
        yield 0
        return
    try:
        try:
            fcntl.flock(file, lock)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield int(os.read(file, 32) or b"0")
    finally:
        os.close(file)
