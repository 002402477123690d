# SPDX-License-Identifier: GPL-3.0-or-later
"""Converts a Docker archive (``docker save``) to a tar of its root file system, which ``sqfstar`` reads."""

from __future__ import annotations

import copy
import errno
import gzip
import io
import json
import posixpath
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rdm_core.errors import TrainerError

_HIDDEN, _OPAQUE = ".wh.", ".wh..wh..opq"
_CHANGED = ("path", "linkpath", "size")
"""The headers of a member that are rewritten."""
_DAMAGED = (tarfile.TarError, zlib.error, EOFError, ValueError, KeyError, TypeError, AttributeError)
"""The exceptions from reading a file that is not an archive, ends early, or has unexpected JSON."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def image_id(path: Path) -> str:
    """Return the digest of an archive's image.

    Raises:
        TrainerError: It is not a Docker archive, or has several images.
    """
    with _archive_errors(path), tarfile.open(path) as archive:
        return posixpath.basename(str(_manifest(archive, path)["Config"])).removesuffix(".json")


def flatten(path: Path, to: IO[bytes], directories: Iterable[str], scratch: Path) -> None:
    """Write an archive's root file system as a tar.

    Args:
        path: The archive.
        to: The stream to write to.
        directories: Mount points that the file system must have.
        scratch: A directory with room for the archive.

    Raises:
        TrainerError: It is not a Docker archive, or has several images.
    """
    with (
        _opened(path, scratch) as archive,
        tarfile.open(fileobj=to, mode="w|", format=tarfile.PAX_FORMAT) as out,
    ):
        manifest = _manifest(archive, path)
        described = json.loads(_content(archive, str(manifest["Config"]), path).read())
        config = described.get("config") or {}
        lines = "".join(f"{line}\n" for line in config.get("Env") or () if "\n" not in line)
        seen: set[str] = set()
        # The files in which enroot and charliecloud look for the image's variables.
        for name in ("etc/environment", "ch/environment"):
            _parents(out, name, seen)
            added = tarfile.TarInfo(name)
            added.size, added.mode = len(lines.encode()), 0o644
            out.addfile(added, io.BytesIO(lines.encode()))
            seen.add(name)
        closed: set[str] = set()
        for layer in reversed(manifest["Layers"]):
            with tarfile.open(fileobj=_content(archive, str(layer), path)) as opened:
                _layer(opened, out, seen, closed)
        for directory in directories:
            _parents(out, posixpath.join(_name(directory), "x"), seen)


def _layer(layer: tarfile.TarFile, out: tarfile.TarFile, seen: set[str], closed: set[str]) -> None:
    """Write the part of a layer that is visible through the layers above it.

    Args:
        layer: The layer.
        out: The tar to write to.
        seen: The paths in the layers above.
        closed: The paths that they have removed, replaced or recreated: they hide everything below them.
    """
    own_seen, own_closed = set(), set()
    for member in layer:
        name = _name(member.name)
        folder, base = posixpath.split(name)
        if base == _OPAQUE:
            own_closed.add(folder)
            continue
        if base.startswith(_HIDDEN):
            gone = posixpath.join(folder, base.removeprefix(_HIDDEN))
            own_seen.add(gone)
            own_closed.add(gone)
            continue
        if not name or name in seen or any(above in closed for above in _above(name)):
            continue
        own_seen.add(name)
        if not member.isdir():
            own_closed.add(name)
        shown = copy.copy(member)
        shown.name = name
        # tarfile would prefer these headers, which have the old values.
        shown.pax_headers = {key: of for key, of in member.pax_headers.items() if key not in _CHANGED}
        content = layer.extractfile(member) if member.isfile() else None
        if member.islnk():
            shown.linkname = _name(member.linkname)
            if shown.linkname not in own_seen:
                # A layer above has replaced the link's target: write the content instead.
                shown.type, shown.size = tarfile.REGTYPE, layer.getmember(member.linkname).size
                content = layer.extractfile(member)
        out.addfile(shown, content)
    seen |= own_seen
    closed |= own_closed


def _above(name: str) -> Iterator[str]:
    """Yield the directories above a path, up to the root."""
    while name:
        name = posixpath.dirname(name)
        yield name


def _parents(out: tarfile.TarFile, name: str, seen: set[str]) -> None:
    """Write the missing directories above a path."""
    for folder in reversed([*filter(None, _above(name))]):
        if folder not in seen:
            added = tarfile.TarInfo(folder)
            added.type, added.mode = tarfile.DIRTYPE, 0o755
            out.addfile(added)
            seen.add(folder)


def _name(path: str) -> str:
    """Return a path relative to the root, which it cannot leave."""
    return posixpath.normpath(f"/{path}").lstrip("/")


@contextmanager
def _archive_errors(path: Path, scratch: Path | None = None) -> Iterator[None]:
    """Turn errors in an archive into one sentence."""
    try:
        yield
    except _DAMAGED as error:
        message = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":.")
        raise TrainerError(f"{path} is no Docker archive, or a damaged one: {message}.") from None
    except BrokenPipeError:
        # This error is the reader's, not the archive's.
        raise
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise TrainerError(f"{scratch} has no room to unpack {path}: {error.strerror}.") from None
        raise TrainerError(f"{path} cannot be read: {error.strerror or error}.") from None


@contextmanager
def _opened(path: Path, scratch: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive for fast seeking; a compressed one is unpacked first."""
    with _archive_errors(path, scratch), path.open("rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not is_packed:
            with tarfile.open(fileobj=raw) as archive:
                yield archive
            return
        with gzip.open(raw) as packed, tempfile.TemporaryFile(dir=scratch) as plain:
            shutil.copyfileobj(packed, plain)
            plain.seek(0)
            with tarfile.open(fileobj=plain) as archive:
                yield archive


def _manifest(archive: tarfile.TarFile, path: Path) -> dict[str, Any]:
    images = json.loads(_content(archive, "manifest.json", path).read())
    if len(images) != 1:
        raise TrainerError(f"{path} has {len(images)} images; docker save ONE of them.")
    image = dict(images[0])
    for key in ("Config", "Layers"):
        if key not in image:
            raise TrainerError(f"{path} is no Docker archive: its manifest.json has no {key}.")
    return image


def _content(archive: tarfile.TarFile, name: str, path: Path) -> IO[bytes]:
    try:
        found = archive.extractfile(name)
    except KeyError:
        found = None
    if found is None:
        raise TrainerError(f"{path} is no Docker archive: it has no {name}; docker save makes one.")
    return found
