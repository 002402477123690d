# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks the paths in the configuration of a job that runs in an image: they are paths inside the image.

The host from which jobs are submitted only sees the paths outside, so each path is mapped through the mounts.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rdm_core.config import Config, dump
from rdm_core.data_paths import with_paths
from rdm_job import inspection

_BLENDS = ("blend", "train", "valid", "test")
_TOKENIZER = ("vocab", "merges", "file")


def problems(config: Config, mounts: Sequence[tuple[str, str]]) -> list[str]:
    """Return the problems of files that a job's processes will not see, one sentence each.

    Files in the image itself, or that only the job's nodes have, cannot be checked here.

    Args:
        config: The job's, which is valid in itself.
        mounts: Pairs of a path on a node and in the image; see :func:`rdm_job.slurm.container.mounted`.
    """
    found: list[str] = []
    is_seen = not config.data.mock
    for key, path, suffix in _paths(config):
        mount = _mount(path, mounts)
        if mount is None:
            is_seen = False
            if path.startswith("/") and is_there(path + suffix):
                found.append(
                    f"{key} {path} is on the host, but the processes run in an image, which has only the "
                    f"directory of the jobs and launcher.slurm.mounts: {_to_do(path, mounts)}, and give the "
                    "path that it has in the image."
                )
            continue
        there = _joined(mount)
        is_known = is_there(there + suffix) if is_there(mount[0]) else None
        if is_known is None:
            # Only the job's nodes may have it.
            is_seen = False
        elif not is_known:
            found.append(
                f"{key} {path} is {there} on the nodes, by launcher.slurm.mounts, and there is no "
                f"{there}{suffix}."
            )
    if is_seen and not found:
        outside = _outside(config, mounts)
        found += inspection.problems(dump(outside), (), outside)
    return list(dict.fromkeys(found))


def is_there(path: str) -> bool | None:
    """Return whether a path exists; None if unknown here, as in a directory without permission."""
    try:
        return Path(path).exists()
    except OSError:
        return None


def _mount(path: str, mounts: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the node's directory that is mounted at a path, and the path in it; None without a mount."""
    # The innermost mount hides the outer ones.
    for source, target in sorted(mounts, key=lambda pair: -len(posixpath.normpath(pair[1]))):
        if (rest := _inside(path, target)) is not None:
            return source, rest
    return None


def _joined(mount: tuple[str, str]) -> str:
    return posixpath.normpath(posixpath.join(*mount))


def _inside(path: str, directory: str) -> str | None:
    """Return a path relative to a directory; None if it is not in it."""
    path, directory = posixpath.normpath(path), posixpath.normpath(directory)
    if path == directory:
        return ""
    start = directory.rstrip("/") + "/"
    return path.removeprefix(start) if path.startswith(start) else None


def _paths(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield the files that the configuration names: key, path, and a suffix of the file's name."""
    if not config.data.mock:
        for key in _BLENDS:
            yield from ((f"data.{key}", blend.prefix, ".idx") for blend in getattr(config.data, key))
        for key in _TOKENIZER if config.data.tokenizer is not None else ():
            if path := getattr(config.data.tokenizer, key):
                yield f"data.tokenizer.{key}", path, ""
    if config.checkpoint.load:
        yield "checkpoint.load", config.checkpoint.load, ""
    if config.checkpoint.init_from:
        yield "checkpoint.init_from", config.checkpoint.init_from, ""


def _to_do(path: str, mounts: Sequence[tuple[str, str]]) -> str:
    """Return a hint on how to mount a path's directory in the image without hiding another mount."""
    directory = posixpath.dirname(posixpath.normpath(path))
    if directory == "/":
        return "move it from / into a directory, add that there"
    hides = any(_inside(target, directory) is not None for _, target in mounts)
    return f"add {directory}{':/data' if hides else ''} there"


def _outside(config: Config, mounts: Sequence[tuple[str, str]]) -> Config:
    """Return a configuration with the node's paths of its data, all of which is in mounts."""

    def to(path: str) -> str:
        mount = _mount(path, mounts)
        return _joined(mount) if mount else path

    # Without trackers: the packages in the image are unknown here.
    seen = replace(config, logging=replace(config.logging, trackers=()))
    return with_paths(seen, to)
