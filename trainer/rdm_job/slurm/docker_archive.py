# SPDX-License-Identifier: GPL-3.0-or-later
"""A Docker archive (``docker save``) as one root file system: a tar for ``sqfstar``, which needs no root."""

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

__all__ = ["flatten", "image_id"]

_HIDDEN, _OPAQUE = ".wh.", ".wh..wh..opq"
_CHANGED = ("path", "linkpath", "size")
"""The headers of a member that are written anew."""
_DAMAGED = (tarfile.TarError, zlib.error, EOFError, ValueError, KeyError, TypeError, AttributeError)
"""What reading a file raises that is no archive, ends early, or has other things in its JSON."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def image_id(path: Path) -> str:
    """Return the digest of an archive's image.

    Raises:
        TrainerError: It is no such archive, or has several images.
    """
    with _refused(path), tarfile.open(path) as archive:
        return posixpath.basename(str(_manifest(archive, path)["Config"])).removesuffix(".json")


def flatten(path: Path, to: IO[bytes], directories: Iterable[str], scratch: Path) -> None:
    """Write an archive's root file system as a tar.

    Args:
        path: The archive.
        to: Where to.
        directories: That must be there, because something is mounted on them.
        scratch: A directory with room for the archive.

    Raises:
        TrainerError: It is no such archive, or has several images.
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
        # enroot's and charliecloud's places for the image's variables.
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
    """Write what of a layer shows through those above it.

    Args:
        layer: The layer.
        out: Where to.
        seen: The paths that layers above have.
        closed: What they have removed, replaced or made anew: nothing below shows through.
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
        # tarfile would rather write these, which are as they were.
        shown.pax_headers = {key: of for key, of in member.pax_headers.items() if key not in _CHANGED}
        content = layer.extractfile(member) if member.isfile() else None
        if member.islnk():
            shown.linkname = _name(member.linkname)
            if shown.linkname not in own_seen:
                # Another file has the place of the one that it is a link to.
                shown.type, shown.size = tarfile.REGTYPE, layer.getmember(member.linkname).size
                content = layer.extractfile(member)
        out.addfile(shown, content)
    seen |= own_seen
    closed |= own_closed


def _above(name: str) -> Iterator[str]:
    """Yield the directories that a path is in, the root among them."""
    while name:
        name = posixpath.dirname(name)
        yield name


def _parents(out: tarfile.TarFile, name: str, seen: set[str]) -> None:
    """Write the directories that a path is in, as far as there are none yet."""
    for folder in reversed([*filter(None, _above(name))]):
        if folder not in seen:
            added = tarfile.TarInfo(folder)
            added.type, added.mode = tarfile.DIRTYPE, 0o755
            out.addfile(added)
            seen.add(folder)


def _name(path: str) -> str:
    """Return a path below the root: nothing leads out of it."""
    return posixpath.normpath(f"/{path}").lstrip("/")


@contextmanager
def _refused(path: Path, scratch: Path | None = None) -> Iterator[None]:
    """Say in one sentence what is wrong with an archive."""
    try:
        yield
    except _DAMAGED as error:
        said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":.")
        raise TrainerError(f"{path} is no Docker archive, or a damaged one: {said}.") from None
    except BrokenPipeError:
        # Of whoever takes what is written.
        raise
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise TrainerError(f"{scratch} has no room to unpack {path}: {error.strerror}.") from None
        raise TrainerError(f"{path} cannot be read: {error.strerror or error}.") from None


@contextmanager
def _opened(path: Path, scratch: Path) -> Iterator[tarfile.TarFile]:
    """An archive in which one can go back quickly: a compressed one is unpacked for that."""
    with _refused(path, scratch), path.open("rb") as raw:
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
