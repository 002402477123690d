# SPDX-License-Identifier: GPL-3.0-or-later
"""What a build of images takes from this machine, its package sources, and where it puts what it makes."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerError
from ansible_collections.rdm.provision.rdm_lab import recipe

_BLOCK = 1024 * 1024


# --- package sources -------------------------------------------------------------------------------------


def release() -> dict[str, str]:
    """Return what /etc/os-release says."""
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key: value.strip('"') for key, _, value in pairs}


def source_files() -> dict[str, str]:
    """Return the machine's package sources, file by file."""
    found = ["/etc/apt/sources.list", *sorted(glob.glob("/etc/apt/sources.list.d/*"))]
    return {
        name: Path(name).read_text(encoding="utf-8", errors="replace")
        for name in found
        if name.endswith((".list", ".sources")) and os.access(name, os.R_OK)
    }


def proxy_options() -> list[str]:
    """Return the proxies that apt is configured to use on this machine."""
    done = subprocess.run(["apt-config", "dump"], stdout=subprocess.PIPE, check=False, text=True)
    wanted = ("Acquire::http::Proxy", "Acquire::https::Proxy")
    return [line for line in done.stdout.splitlines() if line.startswith(wanted)]


# --- what is made ----------------------------------------------------------------------------------------


def has_image(api: DockerAPI, name: str) -> bool:
    """Whether the engine has an image of this name."""
    try:
        api.get(f"/images/{name}/json")
    except DockerError as error:
        if error.status == 404:
            return False
        raise
    return True


def import_root(api: DockerAPI, rootfs: Path, repository: str, tag: str, labels: Mapping[str, str]) -> None:
    """Make an image of the engine from a root file system.

    Args:
        api: of the engine.
        rootfs: the tar.
        repository: the image's name.
        tag: of the image.
        labels: of the image.
    """
    headers = {"Content-Type": "application/x-tar"}
    query: dict[str, Any] = {
        "fromSrc": "-",
        "repo": repository,
        "tag": tag,
        "changes": recipe.import_changes(labels),
    }
    for _line in api.post_stream("/images/create", blocks(rootfs), headers, **query):
        pass


def blocks(path: Path) -> Iterator[bytes]:
    """Yield a file's content."""
    with path.open("rb") as file:
        while True:
            block = file.read(_BLOCK)
            if not block:
                return
            yield block


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """A directory that takes the place of another one when it is complete."""
    new = target.with_name(f"{target.name}.new")
    shutil.rmtree(str(new), ignore_errors=True)
    new.mkdir(parents=True)
    # The nodes read it as another user may.
    new.chmod(0o755)
    yield new
    shutil.rmtree(str(target), ignore_errors=True)
    new.rename(target)
