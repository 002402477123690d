# SPDX-License-Identifier: GPL-3.0-or-later
"""Open directories and files without following symbolic links.

The root of a training container can write to the jobs' directory, so it could have made links there.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os
import stat
from typing import IO, Dict, List, Optional

from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import TEMPORARY
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError

PARTIAL = ".partial"
"""Suffix of what is being written, such as a checkpoint."""


def open_folder(root: str, parts: List[str], make: bool) -> Optional[int]:
    """Return a descriptor of a directory below the root; None if it does not exist.

    Each part is opened relative to the previous one and never through a link, so that nobody who can write
    there can redirect it, not even during this call.

    Raises:
        NodeError: the path has something other than a directory, or leads out of the root.
    """
    if ".." in parts:
        raise NodeError("{0} has a part ..: give a path without it".format(os.path.join(*parts)))
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for number, part in enumerate(parts):
        try:
            if make:
                try:
                    os.mkdir(part, 0o755, dir_fd=folder)
                except FileExistsError:
                    pass
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise NodeError(
                "{0} is not a directory, perhaps a symbolic link: remove it, since anybody who can write "
                "there may have made it".format(os.path.join(root, *parts[: number + 1]))
            ) from None
        finally:
            os.close(folder)
        folder = inner
    return folder


def open_file(root: str, path: str, size: Optional[int] = None) -> Optional[IO[bytes]]:
    """Open a regular file below the root; None if there is none, or one of another size.

    Raises:
        NodeError: as for `open_folder`.
    """
    *above, name = path_parts(path)
    folder = open_folder(root, above, make=False)
    if folder is None:
        return None
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    finally:
        os.close(folder)
    now = os.fstat(file)
    if not stat.S_ISREG(now.st_mode) or size not in (None, now.st_size):
        os.close(file)
        return None
    return os.fdopen(file, "rb")


def list_files(directory: str) -> Optional[Dict[str, int]]:
    """Return the relative path of each file below a directory, and its bytes; None if it does not exist.

    What is being written is left out.

    Raises:
        NodeError: it is not a directory, or a part of its path, or something in it, is a symbolic link.
        OSError: a directory cannot be read.
    """
    parts = path_parts(directory)
    real = os.path.realpath(directory)
    if real != "/" + "/".join(parts):
        raise NodeError(
            "{0} leads through a symbolic link to {1}: give that path if it is the right one".format(
                directory, real
            )
        )
    if os.path.exists(real) and not os.path.isdir(real):
        raise NodeError("{0} is not a directory: give the directory that has it".format(directory))
    top = open_folder("/", parts, make=False)
    if top is None:
        return None
    found: Dict[str, int] = {}
    try:
        for where, folders, files, folder in os.fwalk(".", dir_fd=top, onerror=_fail):
            for name in (*folders, *files):
                path = os.path.normpath(os.path.join(where, name))
                if name.endswith(PARTIAL) or name.startswith(TEMPORARY):
                    continue
                try:
                    now = os.stat(name, dir_fd=folder, follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed meanwhile
                if stat.S_ISLNK(now.st_mode):
                    raise NodeError(
                        "{0} is a symbolic link, which is not followed on a node: replace it with what it "
                        "leads to".format(os.path.join(directory, path))
                    )
                if stat.S_ISREG(now.st_mode):
                    found[path] = now.st_size
            folders[:] = [name for name in folders if not name.endswith(PARTIAL)]
    finally:
        os.close(top)
    return found


def path_parts(path: str) -> List[str]:
    """Return the names in a path."""
    return [part for part in path.split("/") if part not in ("", ".")]


def _fail(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # removed meanwhile
        raise error
