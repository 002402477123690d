# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the file of a Slurm job's image that is named as in `images_list`. Pure decisions."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.image_list import canonical

KEY = "launcher.slurm.image"
DIGEST = f"{KEY}_sha256"
ARCHIVES = (".tar", ".tar.gz", ".tgz")
"""Suffixes of the archives that jobs can run; the suffix decides how one is read (docs/launchers.md)."""


def from_list(
    image: Any, images: Sequence[Mapping[str, Any]], sha256: Any = None
) -> tuple[list[str], list[Problem]]:
    """Return the overrides that name an image's file, and what is wrong with the image.

    Args:
        image: the job's `launcher.slurm.image`; a path or `docker://NAME` needs no override.
        images: `images_list` as the user wrote it.
        sha256: the job's `launcher.slurm.image_sha256`; None if it is not set.
    """
    name = str(image or "")
    if not name or name.startswith(("/", "docker://")):
        return [], []
    listed = {canonical(str(one["name"])): one for one in images if one.get("name")}
    entry = listed.get(canonical(name))
    what = f"{KEY} {name}"
    if entry is None:
        close = difflib.get_close_matches(canonical(name), listed, n=1)
        # A profile depends on the accelerator of Slurm's nodes, which is unknown here.
        empty = "that is empty, and images_profiles is for containers alone"
        has = f"that has {names(sorted(listed))}" if listed else empty
        hint = f"did you mean {close[0]}?" if close else f"give a path or docker://NAME; {has}"
        return [], [Problem(None, what, "is no path, no docker://NAME, and not in images_list", hint)]
    if entry.get("source") == "registry":
        return [f"{KEY}=docker://{entry['name']}"], []
    if entry.get("source") == "build":
        reason = "is built by each node's Docker, which jobs of Slurm do not use"
        return [], [Problem(None, what, reason, "docker save it to a file that all nodes see, and give that")]
    wrong = _wrong_archive(entry, sha256)
    if wrong:
        return [], [Problem(None, what, *wrong)]
    digest = [f"{DIGEST}={entry['sha256']}"] if entry.get("sha256") else []
    return [f"{KEY}={entry['path']}", *digest], []


def _wrong_archive(entry: Mapping[str, Any], sha256: Any) -> tuple[str, str] | None:
    """Return the reason and the hint if a Slurm job cannot run an archive of the list; None if it can."""
    path = str(entry.get("path") or "")
    if not entry.get("remote_src", True):
        hint = "copy it to a directory that all nodes see, and list that path, with remote_src: true"
        return f"is an archive on this machine ({path})", hint
    if not path.startswith("/"):
        return f"is an archive at a relative path ({path})", "list its whole path, which all nodes must see"
    if not path.endswith(ARCHIVES):
        plain = path.removesuffix(".zst")
        unpacked = plain != path and plain.endswith(ARCHIVES)
        hint = f"unpack it (zstd -d {path}), and list {plain}" if unpacked else "rename it"
        return f"is an archive that is no {', '.join(ARCHIVES)} ({path})", hint
    listed = entry.get("sha256")
    if sha256 and listed and str(sha256).lower() != str(listed).lower():
        reason = f"has the sha256 {listed} in images_list, and {DIGEST} is {sha256}"
        return reason, f"leave {DIGEST} out, or correct the wrong one"
    return None
