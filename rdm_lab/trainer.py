# SPDX-License-Identifier: GPL-3.0-or-later
"""Contents and formats of the lab's training image. Decisions only: no engine is touched.

It is the lab's CPU image with two more layers. The lower one has torch and everything else that training
needs, made by the scripts that the Dockerfiles in trainer/images run. The upper one has the trainer's own
sources: a change of them rebuilds only this one.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from ansible_collections.rdm.provision.rdm_lab.recipe import PATH, Layer, add_file, measured

TRAIN_IMAGE = "rdm-lab/train:1"
ENVIRONMENT = ("PATH=/opt/rdm/bin:" + PATH.partition("=")[2],)
SCRIPT = "trainer-layer.sh"

# Raised when the code below changes what it makes.
FORMAT = 1

EXTRAS = ("finetune",)
"""What the environment can have besides what training needs."""

# Below the directory `trainer`.
_INSTALLATION = ("images/install.sh", "images/python.sh", "images/packages")
_SOURCES = ("configs", "rdm_core", "rdm_job", "rdm_log", "rdm_planner", "rdm_trainer")
_AT = "opt/rdm/trainer"
_NAME = re.compile(r"train-([0-9a-f]{8})-[0-9a-f]{8}\.tar")
_KEPT = 2
_BLOCK = 1024 * 1024

# The environment variables that tell pip where packages come from.
_SETTINGS = (
    "cert",
    "default-timeout",
    "extra-index-url",
    "find-links",
    "index-url",
    "no-index",
    "proxy",
    "retries",
    "timeout",
    "trusted-host",
)
_LISTS = ("extra-index-url", "find-links", "trusted-host")


# --- which image -----------------------------------------------------------------------------------------


class Versions(NamedTuple):
    """The versions of a training image's parts, 8 hexadecimal digits each."""

    installation: str
    sources: str

    @property
    def archive(self) -> str:
        """The name of its archive."""
        return f"train-{self.installation}-{self.sources}.tar"


def lists(extras: Iterable[str] = ()) -> list[str]:
    """Return the requirements files of an environment, relative to the directory `trainer`.

    Args:
        extras: of :data:`EXTRAS`.
    """
    return [f"requirements/{name}.txt" for name in ["runtime", *sorted(set(extras))]]


def versions(trainer: Path, files: Path, base: str, extras: Iterable[str] = ()) -> Versions:
    """Return the current versions of the training image's parts.

    Args:
        trainer: the directory `trainer` of the project.
        files: the directory with SCRIPT.
        base: the version of the CPU image's recipe.
        extras: of :data:`EXTRAS`.
    """
    below = hashlib.sha256(json.dumps([FORMAT, base]).encode() + (files / SCRIPT).read_bytes())
    _digest(below, trainer, [*_INSTALLATION, *lists(extras)])
    above = hashlib.sha256()
    _digest(above, trainer, _SOURCES)
    return Versions(below.hexdigest()[:8], above.hexdigest()[:8])


def _digest(digest: Any, trainer: Path, names: Iterable[str]) -> None:
    for path in _files(trainer, names):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(trainer)}\0{len(content)}\0".encode() + content)


def _files(trainer: Path, names: Iterable[str]) -> list[Path]:
    """Return the files under a directory, without Python's caches."""
    found: list[Path] = []
    for name in names:
        top = trainer / name
        found += sorted(top.rglob("*")) if top.is_dir() else [top]
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def with_same_installation(archives: Iterable[Path], wanted: Versions) -> list[Path]:
    """Return the archives whose lower layers can be reused, newest first."""
    found = []
    for path in archives:
        match = _NAME.fullmatch(path.name)
        if match and match[1] == wanted.installation:
            found.append(path)
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def superseded(archives: Iterable[Path]) -> list[Path]:
    """Return the archives to remove: all but the newest ones, which labs may still use."""
    found = [path for path in archives if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT:]


# --- layers ----------------------------------------------------------------------------------------------


def source_layer(trainer: Path, target: Path) -> Layer:
    """Write the layer with the trainer's sources; the same sources give the same layer."""
    with tarfile.open(str(target), "w") as tar:
        for path in _files(trainer, _SOURCES):
            add_file(tar, f"{_AT}/{path.relative_to(trainer)}", path.read_bytes(), 0o644)
    return measured(target)


def archive_layers(archive: Path, work: Path) -> tuple[list[Layer], str]:
    """Return the layers of an archive's image from the bottom up, in place, and its time stamp.

    Args:
        archive: a plain archive of one image.
        work: a directory for layers that are compressed in it.
    """
    with tarfile.open(str(archive)) as tar:
        manifest = _json(tar, "manifest.json")[0]
        config = _json(tar, manifest["Config"])
        layers = []
        for name, diff_id in zip(manifest["Layers"], config["rootfs"]["diff_ids"], strict=True):
            member = tar.getmember(name)
            if member.issym():
                member = tar.getmember(os.path.normpath(os.path.join(os.path.dirname(name), member.linkname)))
            layer = Layer(archive, diff_id.partition(":")[2], member.offset_data, member.size)
            layers.append(_uncompressed(layer, work))
        return layers, str(config.get("created", ""))


def _json(tar: tarfile.TarFile, name: str) -> Any:
    file = tar.extractfile(name)
    assert file is not None  # the format has a regular file here
    return json.load(file)


def _uncompressed(layer: Layer, work: Path) -> Layer:
    with layer.path.open("rb") as file:
        file.seek(layer.offset)
        if file.read(2) != b"\x1f\x8b":
            return layer
        file.seek(layer.offset)
        target = work / f"{layer.digest}.tar"
        left = layer.size
        unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        with target.open("wb") as out:
            while left:
                block = file.read(min(_BLOCK, left))
                left -= len(block)
                out.write(unpacker.decompress(block))
    return Layer(target, layer.digest)


# --- pip's configuration ---------------------------------------------------------------------------------


def pip_settings(listing: str) -> dict[str, str]:
    """Return pip's settings about package sources in the output of `pip config list`: option -> value.

    The environment overrides files, and the section of a command overrides the global one.
    """
    ranks = {"global": 0, "install": 1, ":env:": 2}
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        match = re.fullmatch(r"(:env:|[\w-]+)\.([\w-]+)=(.*)", line)
        if not match or match[1] not in ranks or match[2] not in _SETTINGS:
            continue
        rank = ranks[match[1]]
        if rank >= found.get(match[2], (0, ""))[0]:
            found[match[2]] = (rank, str(ast.literal_eval(match[3])))
    return {name: value for name, (_rank, value) in found.items()}


def local_directories(settings: Mapping[str, str]) -> list[str]:
    """Return the directories of this machine that pip takes packages from.

    An index on the disk refers to files beside it, so its parent directory is returned.
    """
    found = []
    for option in ("extra-index-url", "find-links", "index-url"):
        for word in settings.get(option, "").split():
            parts = urlsplit(word)
            if parts.scheme not in ("", "file"):
                continue
            path = os.path.normpath(unquote(parts.path))
            if option != "find-links" or os.path.isfile(path):
                path = os.path.dirname(path)
            if path != "/" and os.path.isdir(path):
                found.append(path)
    return [path for path in dict.fromkeys(found) if not any(path.startswith(f"{top}/") for top in found)]


def pip_conf(settings: Mapping[str, str], certificates: str) -> str:
    """Return the text of a pip.conf.

    Args:
        settings: of pip_settings.
        certificates: the builder's path of the file of trusted certificates; may be empty.
    """
    lines = ["[global]"]
    for name, value in settings.items():
        if name == "cert":
            continue
        lines.append(
            f"{name} = {value}" if name not in _LISTS else "\n    ".join([f"{name} =", *value.split()])
        )
    if certificates:
        lines.append(f"cert = {certificates}")
    return "\n".join(lines) + "\n"
