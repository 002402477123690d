# SPDX-License-Identifier: GPL-3.0-or-later
"""Detection of checkpoint files that have the right size but damaged content.

Each file has its checksum in a separate file. Those of earlier releases are archives of ``torch.save``, which
writes a checksum of each part; ``torch.load`` ignores it.
"""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from rdm_core.atomic_file import write_atomically
from rdm_core.errors import FAILED, TrainerError

CHECKSUM = ".crc32"
_DIRECTORY = 0x10


class DamagedError(TrainerError):
    """Files of a checkpoint are damaged.

    Attributes:
        damage: The message without advice.
    """

    def __init__(self, directory: Path, names: Iterable[str]) -> None:
        self.damage = f"{directory} is damaged in {' and '.join(sorted(names))}"
        super().__init__(
            f"{self.damage}; bring that back, or go to an earlier checkpoint with `rdm-trainer checkpoint "
            f"repair {directory.parent} --iteration N`.",
            exit_code=FAILED,
        )


def note(path: Path) -> Path:
    """Write a file's checksum to a file next to it, and return that file's path."""
    checksum_file = path.with_name(path.name + CHECKSUM)
    write_atomically(checksum_file, str(_checksum(path)), 0o666, durable=True)
    return checksum_file


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found = zlib.crc32(block, found)
    return found


def is_sound(path: Path) -> bool:
    """Read a file to the end and compare it with its checksums."""
    try:
        if path.suffix == CHECKSUM:
            return path.read_text().isdecimal()
        checksum_file = path.with_name(path.name + CHECKSUM)
        if checksum_file.exists():
            return checksum_file.read_text() == str(_checksum(path))
        with zipfile.ZipFile(path) as archive:
            # Of a part that is marked as a directory, torch reads nothing.
            is_marked = any(part.external_attr & _DIRECTORY for part in archive.infolist())
            return not is_marked and archive.testzip() is None
    # A damaged directory of the archive may name a compression or a feature that is not there.
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError):
        return False


def refuse(directory: Path, names: Iterable[str]) -> None:
    """Read files to the end and reject damaged ones.

    Raises:
        DamagedError: Some of them are damaged.
    """
    if damaged := [name for name in names if not is_sound(directory / name)]:
        raise DamagedError(directory, damaged)


@contextlib.contextmanager
def naming(directory: Path, names: Iterable[str]) -> Iterator[None]:
    """Turn any failure to read files into an error that names the damaged ones.

    Raises:
        DamagedError: Reading failed, and some of the files are damaged.
    """
    try:
        yield
    except TrainerError:
        raise
    except Exception as problem:
        damaged = [name for name in names if not is_sound(directory / name)]
        if not damaged:
            raise
        raise DamagedError(directory, damaged) from problem
