#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""rdm.provision.job_data: a data directory is where the jobs of a node read it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_data
short_description: Bring a directory of data to the jobs of a node
description:
  - Copies the files of a directory on the controller to C(data) in the jobs' directory of a node, where they
    are missing or others. What else is there stays.
  - The root of a training container can write there, so it could have left symbolic links. None is followed
    below the jobs' directory, and what is in the way is refused.
  - A file is replaced in one step.
author:
  - The rdm-provision developers
extends_documentation_fragment: rdm.provision.attributes.changes
attributes:
  diff_mode:
    support: full
    description: Shows the names of the files that are copied.
options:
  source:
    description: The directory on the controller. Symbolic links in it are copied as what they lead to.
    type: path
    required: true
  directory:
    description: The jobs' directory on the node.
    type: path
    required: true
  sizes:
    description: Path of each file below C(data), and how many bytes it has. Set by the action plugin.
    type: dict
    default: {}
  by_size:
    description: A file of the right size is taken for the right one. Set by the action plugin.
    type: bool
    default: false
  brought:
    description: Path of a file below C(data), and where M(rdm.provision.data_distribution) has brought it.
    type: dict
    default: {}
  file:
    description: Path of the one file to store. Set by the action plugin.
    type: str
    default: ""
  copy:
    description: Where that file was copied to on the node. Set by the action plugin.
    type: path
  digest:
    description: SHA-256 digest of a copy that other nodes have brought. Set by the action plugin.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Copy files that are missing or differ
  rdm.provision.job_data:
    source: tokens
    directory: /var/lib/rdm/rdm
"""

RETURN = r"""
copied:
  description: The files that were copied, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [text_document.bin]
needed:
  description: The files that are missing, or have another size. Of use to the action plugin.
  returned: when files are compared
  type: list
  elements: str
digests:
  description: The SHA-256 digests of files with the right size. Of use to the action plugin.
  returned: when files are compared
  type: dict
"""

import hashlib
import os
import stat
import uuid
from typing import IO, Any, Dict, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import TEMPORARY
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError

ARGUMENT_SPEC: Dict[str, Any] = {
    "source": {"type": "path", "required": True},
    "directory": {"type": "path", "required": True},
    "sizes": {"type": "dict", "default": {}},
    "by_size": {"type": "bool", "default": False},
    "brought": {"type": "dict", "default": {}},
    "file": {"type": "str", "default": ""},
    "copy": {"type": "path"},
    "digest": {"type": "str", "default": ""},
}

FOLDER = "data"
_READ_SIZE = 1 << 20


def open_folder(root: str, parts: List[str], make: bool) -> Optional[int]:
    """Return a descriptor of a directory below the root; None if it does not exist.

    Each part is opened relative to the previous one and never through a link, so that nobody who can write
    there can redirect it, not even during this call.

    Raises:
        NodeError: the path has something other than a directory.
    """
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


def compare(root: str, sizes: Dict[str, int], by_size: bool = False) -> Tuple[List[str], Dict[str, str]]:
    """Return the files that are missing or have another size, and the digests of the others.

    Args:
        root: the jobs' directory.
        sizes: path of each file -> its bytes.
        by_size: whether to compare only sizes, without digests.
    """
    needed: List[str] = []
    digests: Dict[str, str] = {}
    for path, size in sizes.items():
        found = _open(root, path, int(size))
        if found is None:
            needed.append(path)
            continue
        with found:
            if not by_size:
                digests[path] = digest(found)
    return needed, digests


def store(root: str, path: str, copy: str, wanted: str = "") -> None:
    """Move a copy to its place atomically.

    Args:
        root: the jobs' directory.
        path: the file's path below `data`.
        copy: its current path.
        wanted: its SHA-256 digest; empty to skip the check.

    Raises:
        NodeError: its path is a directory, a parent is not one, or the digest differs.
        OSError: it cannot be written.
    """
    *above, name = [FOLDER, *path.split("/")]
    folder = open_folder(root, above, make=True)
    if folder is None:
        raise NodeError("{0} has been removed while it was used".format(os.path.join(root, *above)))
    temporary = TEMPORARY + uuid.uuid4().hex
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        target = os.open(temporary, flags, 0o644, dir_fd=folder)
        with os.fdopen(target, "wb") as out, open(copy, "rb") as source:
            os.fchmod(out.fileno(), 0o644)
            state = hashlib.sha256()
            for piece in iter(lambda: source.read(_READ_SIZE), b""):
                out.write(piece)
                if wanted:
                    state.update(piece)
        if wanted and state.hexdigest() != wanted:
            raise NodeError("{0}, which other nodes brought, is not {1}".format(copy, path))
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except IsADirectoryError:
        raise NodeError("{0} is a directory: remove it".format(os.path.join(root, *above, name))) from None
    finally:
        try:
            os.unlink(temporary, dir_fd=folder)
        except FileNotFoundError:
            pass
        os.close(folder)


def _open(root: str, path: str, size: int) -> Optional[IO[bytes]]:
    """Open a regular file of this size; None if there is none."""
    *above, name = [FOLDER, *path.split("/")]
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
    if not stat.S_ISREG(now.st_mode) or now.st_size != size:
        os.close(file)
        return None
    return os.fdopen(file, "rb")


def digest(stream: Any) -> str:
    """Return the SHA-256 digest of a stream."""
    state = hashlib.sha256()
    for piece in iter(lambda: stream.read(_READ_SIZE), b""):
        state.update(piece)
    return state.hexdigest()


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Compare the directory or store a file, and return the module's result."""
    params = module.params
    try:
        if params["file"]:
            store(params["directory"], params["file"], params["copy"], params["digest"])
            return {"changed": True, "copied": [params["file"]]}
        needed, digests = compare(params["directory"], params["sizes"], params["by_size"])
        return {"copied": [], "needed": needed, "digests": digests}
    except OSError as error:
        raise NodeError("{0}: {1}".format(params["directory"], error.strerror or error)) from None


if __name__ == "__main__":
    main()
