# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of a checkpoint whose size is right and whose content is not."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from rdm_trainer.errors import FAILED, TrainerError

__all__ = ["is_sound", "naming"]


def is_sound(path: Path) -> bool:
    """Read a file of torch's to the end: it is an archive with a checksum of each part."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    # A damaged directory of the archive may ask for a compression or a feature that there is not.
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError):
        return False


@contextlib.contextmanager
def naming(directory: Path, names: Iterable[str]) -> Iterator[None]:
    """Say which of the files that were read are damaged, when reading them fails with whatever it may be.

    Checksums are compared only then: comparing them each time would read every checkpoint twice.

    Args:
        directory: The step's.
        names: The files that are read.

    Raises:
        TrainerError: Reading failed, and some of the files are damaged.
    """
    try:
        yield
    except Exception as error:
        damaged = [name for name in sorted(names) if not is_sound(directory / name)]
        if not damaged:
            raise
        raise TrainerError(
            f"{directory} is damaged in {' and '.join(damaged)}; bring that back, or go to an earlier "
            f"checkpoint with `rdm-trainer checkpoint repair {directory.parent} --iteration N`.",
            exit_code=FAILED,
        ) from error
