# SPDX-License-Identifier: GPL-3.0-or-later
"""The contents of a checkpoints directory, and which steps in it are complete.

::

    checkpoints/
      latest                              global_step20
      latest_checkpointed_iteration.txt   20
      global_step20/                      the files of all ranks, and manifest.json
      global_step30.partial/              being written, or left by a run that ended while writing

A step is written under a name that ends in ``.partial``. It is renamed once every rank's files are on disk,
along with the manifest, which lists all files with their sizes. The pointers are written last. So however a
run ends, a directory with the final name was complete, and the sizes tell whether it still is.

On disks that nodes do not share, each node has its own files under the same names, with the manifest of all
files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rdm_core.atomic_file import PARTIAL, sync_directory, write_atomically
from rdm_core.errors import TrainerError

CHECKPOINTS = "checkpoints"
LATEST = "latest"
MEGATRON_LATEST = "latest_checkpointed_iteration.txt"
MANIFEST = "manifest.json"
REPLACED = f".replaced{PARTIAL}"
ASIDE = ".aside"

_STEP = re.compile(r"global_step(\d+)$")
_FORMAT = 1


def checkpoints_of(directory: Path) -> Path:
    """Return a job's checkpoints directory.

    Args:
        directory: The checkpoints directory, or the job's.
    """
    inner = directory / CHECKPOINTS
    return inner if inner.is_dir() else directory


def tag(iteration: int) -> str:
    """Return the name of an iteration's directory."""
    return f"global_step{iteration}"


@dataclass(frozen=True)
class Manifest:
    """The files that a step's directory must contain, and their model and layout.

    Args:
        iteration: The step.
        files: Bytes of each file of all nodes, by its path below the directory.
        model: The model's shape; see ``identity``.
        layout: The layout that wrote it; see ``identity``.
        state: The training's state: consumed samples, skipped steps, the loss curve.
    """

    iteration: int
    files: Mapping[str, int]
    model: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Write the manifest into a directory, and return once it is on the disk."""
        content = json.loads(json.dumps(dataclasses.asdict(self)))
        text = json.dumps({"format": _FORMAT, "checksum": _checksum(content), **content})
        write_atomically(directory / MANIFEST, text, 0o666, durable=True)

    @classmethod
    def read(cls, directory: Path) -> Manifest | None:
        """Read a directory's manifest; None if it is missing, unreadable or damaged."""
        try:
            found = json.loads((directory / MANIFEST).read_text())
            checksum = found.pop("checksum", None)
            # Earlier releases wrote no checksum.
            if found.pop("format") != _FORMAT or checksum not in (None, _checksum(found)):
                return None
            return cls(**found)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    @property
    def bytes(self) -> int:
        """Total size of all files."""
        return sum(self.files.values())


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


@dataclass(frozen=True)
class Step:
    """The files of one step in one directory."""

    iteration: int
    manifest: Manifest | None
    files: Mapping[str, int]


@dataclass(frozen=True)
class Inventory:
    """The contents of one checkpoints directory.

    Args:
        steps: Steps by iteration.
        leftovers: Names of directories and files that an interrupted write left behind.
        latest: The content of DeepSpeed's pointer; None if there is none.
        megatron: The content of Megatron's pointer; None if there is none.
    """

    steps: Mapping[int, Step] = field(default_factory=dict)
    leftovers: Sequence[str] = ()
    latest: str | None = None
    megatron: str | None = None

    def points_to(self, iteration: int) -> bool:
        """Tell whether both pointers name an iteration."""
        return self.latest == tag(iteration) and self.megatron == str(iteration)


def measure(directory: Path) -> dict[str, int]:
    """Return the bytes of every file below a directory, except the manifest."""
    found = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                found[path.relative_to(directory).as_posix()] = path.stat().st_size
    found.pop(MANIFEST, None)
    return found


def scan(directory: Path) -> Inventory:
    """Return a directory's contents, the oldest step first; a missing directory counts as empty."""
    steps, leftovers = {}, []
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        entries = []
    for entry in entries:
        path = Path(entry.path)
        if entry.name.endswith(PARTIAL):
            leftovers.append(entry.name)
        elif match := _STEP.match(entry.name):
            steps[int(match[1])] = Step(int(match[1]), Manifest.read(path), measure(path))
    ordered = dict(sorted(steps.items()))
    return Inventory(ordered, leftovers, _pointer(directory / LATEST), _pointer(directory / MEGATRON_LATEST))


def _pointer(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def require_below(names: Iterable[str], index: Path) -> None:
    """Reject files outside of the directory of the index that names them. A file in it may be a link.

    Raises:
        TrainerError: One is an absolute path, or leaves the directory by ``..``.
    """
    for name in set(names):
        path = PurePosixPath(name)
        if not path.name or path.is_absolute() or ".." in path.parts:
            raise TrainerError(
                f"{index} names the file {name[:100]!r}; only files in its own directory are read."
            )


def missing(manifest: Manifest, parts: Iterable[Step | None]) -> list[str]:
    """Return the manifest's files that no part has with the right size."""
    present = [part.files for part in parts if part is not None]
    return [
        name for name, size in manifest.files.items() if not any(have.get(name) == size for have in present)
    ]


def why_incomplete(parts: Iterable[Step | None]) -> str:
    """Say why the parts of a step in several directories are not a complete one."""
    present = [part for part in parts if part is not None]
    manifest = next((part.manifest for part in present if part.manifest is not None), None)
    if manifest is None:
        return f"its {MANIFEST} is missing or damaged"
    if not (absent := missing(manifest, present)):
        return "its parts are of different runs"
    more = f", and {len(absent) - 1} more" if len(absent) > 1 else ""
    return f"{absent[0]} is missing or has another size{more}"


def complete_steps(inventories: Sequence[Inventory]) -> dict[int, Manifest]:
    """Return the steps that are complete over all directories together, oldest first."""
    found = {}
    for iteration in sorted({step for inventory in inventories for step in inventory.steps}):
        parts = [inventory.steps.get(iteration) for inventory in inventories]
        # Parts of different runs do not fit together, so only parts with equal manifests are combined.
        for part in parts:
            if part is not None and part.manifest is not None:
                manifest = part.manifest
                same = [other for other in parts if other is not None and other.manifest == manifest]
                if not missing(manifest, same):
                    found[iteration] = manifest
                    break
    return found


def write_all(file: io.FileIO, data: bytes | memoryview) -> None:
    """Write all data to an unbuffered file. On a disk that fills up, one write may take only a part."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def commit(directory: Path, name: str, manifest: Manifest) -> None:
    """Write the manifest into ``NAME.partial`` and give it its final name.

    An existing directory with this name is renamed first and removed afterwards.
    """
    partial, final = directory / f"{name}{PARTIAL}", directory / name
    partial.mkdir(parents=True, exist_ok=True)
    manifest.write(partial)
    if final.exists():
        # A run that ends between the two renames leaves no final name; recover restores it.
        replaced = directory / f"{name}{REPLACED}"
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
        partial.rename(final)
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        partial.rename(final)
    sync_directory(directory)


def recover(directory: Path) -> None:
    """Complete or roll back a commit that was interrupted between its two renames."""
    for leftover in scan(directory).leftovers:
        name = leftover.removesuffix(REPLACED)
        if name != leftover and not (directory / name).exists():
            successor = directory / f"{name}{PARTIAL}"
            whole = successor if Manifest.read(successor) is not None else directory / leftover
            whole.rename(directory / name)
            sync_directory(directory)


def point_to(directory: Path, iteration: int) -> None:
    """Write both pointers."""
    write_atomically(directory / LATEST, tag(iteration), 0o666, durable=True)
    write_atomically(directory / MEGATRON_LATEST, str(iteration), 0o666, durable=True)


def clear_leftovers(directory: Path) -> None:
    """Remove what interrupted writes left in a directory."""
    recover(directory)
    for name in scan(directory).leftovers:
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _remove(directory: Path, name: str) -> None:
    # Rename first, so that an interrupted removal leaves nothing under the final name.
    path, leaving = directory / name, directory / f"{name}.removed{PARTIAL}"
    if path.exists():
        shutil.rmtree(leaving, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.rename(leaving)
            shutil.rmtree(leaving, ignore_errors=True)


def prune(directory: Path, keep: int, newest: int) -> list[int]:
    """Remove old steps.

    Args:
        directory: The checkpoints directory.
        keep: How many of the newest steps to keep; 0 keeps all.
        newest: The newest step that counts; later steps stay.

    Returns:
        The removed iterations.
    """
    if not keep:
        return []
    inventory = scan(directory)
    old = sorted(step for step in inventory.steps if step <= newest)[:-keep]
    for iteration in old:
        # Earlier releases made a copy for other layouts.
        _remove(directory, f"{tag(iteration)}_universal")
        _remove(directory, tag(iteration))
    return old


def set_aside(directory: Path, iterations: Iterable[int]) -> list[str]:
    """Rename steps so that no run uses them; nothing is removed.

    Returns:
        The new names.
    """
    renamed = []
    for iteration in sorted(scan(directory).steps.keys() & set(iterations)):
        name = tag(iteration)
        aside, number = directory / f"{name}{ASIDE}", 1
        while aside.exists():
            number += 1
            aside = directory / f"{name}{ASIDE}{number}"
        (directory / name).rename(aside)
        renamed.append(aside.name)
    return renamed
