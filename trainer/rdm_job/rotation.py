# SPDX-License-Identifier: GPL-3.0-or-later
"""Logs that do not grow for ever: ``n1.out`` becomes ``n1.out.1``, that becomes ``n1.out.2``, and so on.

A job's processes, and programs that are not ours, keep their log open, so it is copied and cut, as
logrotate's ``copytruncate`` does. They append, so that they go on at its new end. What they write in the
moment between the end of the copy and the cut is lost.

Places in a log are counted from the first byte that was ever written to it. How many bytes of it lie in
pieces, or are gone, stands in ``.n1.out.before``; who holds its lock sees no log that is being cut.
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

__all__ = ["end_of", "gained", "rotate"]


def rotate(path: Path, most: int, keep: int) -> None:
    """Make a log a piece when it has become too long. A full disk does not end the job.

    Args:
        path: The log. Nobody else may rotate it.
        most: Bytes; 0: never.
        keep: So many pieces are kept.
    """
    partial = path.with_name(f".{path.name}.piece")
    try:
        if not most or path.stat().st_size <= most:
            return
        with path.open("r+b") as log, partial.open("wb") as copy:
            # Only a copy that is on the disk is sure to have room there: one over the network says so late.
            # The second takes what came during the first, which may be long.
            for _ in range(2):
                shutil.copyfileobj(log, copy)
                copy.flush()
                os.fsync(copy.fileno())
            with _before(path, fcntl.LOCK_EX) as before:
                # What came meanwhile, without a wait, in which more would come; then at once the cut.
                # Nothing is renamed before all is copied.
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
    """Return the place behind the last byte of a log; 0 where there is none."""
    with contextlib.suppress(FileNotFoundError), _before(path, fcntl.LOCK_SH) as before:
        return before + path.stat().st_size
    return 0


def gained(path: Path, place: int, most: int) -> tuple[bytes, int]:
    """Return whole lines of a log from a place on, and the place where the next one begins.

    Args:
        path: The log.
        place: Where reading ended before. What was removed since is left out; where records were thinned,
            reading goes on at their end.
        most: So many bytes are returned at most; a longer line is returned in parts.

    Raises:
        OSError: It cannot be read.
    """
    with _before(path, fcntl.LOCK_SH) as before:
        end = before + path.stat().st_size
        files = with_pieces(path)
        first = before - sum(file.stat().st_size for file in files[:-1])
        place = max(first, min(place, end))
        data = b"".join(read(files, begin=place - first, end=place - first + most))
    whole = data.rfind(b"\n") + 1 or (len(data) if len(data) == most else 0)
    return data[:whole], place + whole


def _notes(path: Path) -> Path:
    return path.with_name(f".{path.name}.before")


@contextlib.contextmanager
def _before(path: Path, lock: int) -> Iterator[int]:
    """Hold the lock; its value is how many bytes lie before a log."""
    kind = os.O_RDWR | os.O_CREAT if lock == fcntl.LOCK_EX else os.O_RDONLY
    try:
        file = os.open(_notes(path), kind, 0o644)
    except FileNotFoundError:
        # It was never rotated.
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
