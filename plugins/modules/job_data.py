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
extends_documentation_fragment: rdm.provision.attributes.changes
options:
  source:
    description: The directory on the controller. Symbolic links in it are copied as what they lead to.
    type: path
    required: true
  remote_src:
    description:
      - Whether the directory is on nodes. Then M(rdm.provision.data_distribution) has compared and brought
        its files, and this stores them. Symbolic links there are refused.
    type: bool
    default: false
  directory:
    description: The jobs' directory on the node.
    type: path
    required: true
  folder:
    description: The directory below that one for the files.
    type: str
    default: data
  listed:
    description: Whether only to list the files of O(source) on the node. Set by the action plugin.
    type: bool
    default: false
  sizes:
    description: Path of each file below O(folder), and how many bytes it has. Set by the action plugin.
    type: dict
    default: {}
  by_size:
    description: A file of the right size is taken for the right one. Set by the action plugin.
    type: bool
    default: false
  hashed:
    description:
      - Path of each file of O(sizes) of which only a part is hashed, with the part's offset and bytes. Set by
        the action plugin.
    type: dict
    default: {}
  brought:
    description: What M(rdm.provision.data_distribution) returns for the node.
    type: dict
    default: {}
  parts:
    description:
      - Paths of files to store, each with its offset in O(copy) and its bytes; without a copy, they are files
        of O(source). Set by the action plugin.
    type: dict
    default: {}
  file:
    description: Path of the one file to store. Set by the action plugin.
    type: str
  copy:
    description:
      - The copy of that file, or of these, on the node. Set by the action plugin.
      - Required with O(file), and if O(remove_copy=true).
    type: path
  remove_copy:
    description: Whether to remove O(copy) once all is stored. Set by the action plugin.
    type: bool
    default: false
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
sizes:
  description: The files of O(source) on the node and their bytes; null if it does not exist.
  returned: with O(listed)
  type: dict
"""

import hashlib
import os
import sys
import uuid
from typing import IO, Any, Dict, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import TEMPORARY
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.no_symlinks import (
    list_files,
    open_file,
    open_folder,
    path_parts,
)
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import remove_pieces

FOLDER = "data"

ARGUMENT_SPEC: Dict[str, Any] = {
    "source": {"type": "path", "required": True},
    "remote_src": {"type": "bool", "default": False},
    "directory": {"type": "path", "required": True},
    "folder": {"type": "str", "default": FOLDER},
    "listed": {"type": "bool", "default": False},
    "sizes": {"type": "dict", "default": {}},
    "by_size": {"type": "bool", "default": False},
    "hashed": {"type": "dict", "default": {}},
    "brought": {"type": "dict", "default": {}},
    "parts": {"type": "dict", "default": {}},
    "file": {"type": "str"},
    "copy": {"type": "path"},
    "remove_copy": {"type": "bool", "default": False},
    "digest": {"type": "str", "default": ""},
}

_READ_SIZE = 1 << 20


def compare(
    root: str,
    sizes: Dict[str, int],
    by_size: bool = False,
    folder: str = FOLDER,
    hashed: Optional[Dict[str, Tuple[int, int]]] = None,
) -> Tuple[List[str], Dict[str, str]]:
    """Return the files that are missing or have another size, and the digests of the others.

    Args:
        root: the jobs' directory.
        sizes: path of each file -> its bytes.
        by_size: whether to compare only sizes, without digests.
        folder: the directory below the root that has the files.
        hashed: path of a file -> offset and bytes of the part that is hashed, instead of the whole file.
    """
    needed: List[str] = []
    digests: Dict[str, str] = {}
    for path, size in sizes.items():
        found = open_file(root, "{0}/{1}".format(folder, path), int(size))
        if found is None:
            needed.append(path)
            continue
        with found:
            if not by_size:
                begin, length = (hashed or {}).get(path, (0, int(size)))
                found.seek(begin)
                digests[path] = digest(found, length)
    return needed, digests


def store(root: str, path: str, source: IO[bytes], size: Optional[int] = None, wanted: str = "") -> None:
    """Copy a file to its place atomically.

    Args:
        root: the jobs' directory.
        path: the file's path below it.
        source: the content, from the current position on.
        size: its bytes; None for all of them.
        wanted: its SHA-256 digest; empty to skip the check.

    Raises:
        NodeError: its path is a directory, a parent is not one, or the size or the digest differs.
        OSError: it cannot be written.
    """
    *above, name = path_parts(path)
    folder = open_folder(root, above, make=True)
    if folder is None:
        raise NodeError("{0} has been removed while it was used".format(os.path.join(root, *above)))
    temporary = TEMPORARY + uuid.uuid4().hex
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        target = os.open(temporary, flags, 0o644, dir_fd=folder)
        with os.fdopen(target, "wb") as out:
            os.fchmod(out.fileno(), 0o644)
            state = hashlib.sha256()
            left = sys.maxsize if size is None else size
            while piece := source.read(min(_READ_SIZE, left)):
                out.write(piece)
                left -= len(piece)
                if wanted:
                    state.update(piece)
        if size is not None and left:
            raise NodeError("the source of {0} is shorter than it was".format(path))
        if wanted and state.hexdigest() != wanted:
            raise NodeError("{0}, which other nodes brought, is not {1}".format(source.name, path))
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except IsADirectoryError:
        raise NodeError("{0} is a directory: remove it".format(os.path.join(root, *above, name))) from None
    finally:
        try:
            os.unlink(temporary, dir_fd=folder)
        except FileNotFoundError:
            pass
        os.close(folder)


def store_parts(
    root: str, folder: str, parts: Dict[str, Tuple[int, int]], directory: str, copy: Optional[str]
) -> None:
    """Copy files of this node to their places.

    Args:
        root: the jobs' directory.
        folder: the directory below it for the files.
        parts: path of each file below the folder -> its offset in `copy`, and its bytes.
        directory: that has the files if there is no copy.
        copy: a file of this user that has all of them; None for none.

    Raises:
        NodeError: as `store`, or a file is missing.
        OSError: a file cannot be written.
    """
    for path, (offset, size) in parts.items():
        # Others can write to the directory, so no link in it is followed.
        path_there = "{0}/{1}".format(directory, path)
        source = open(copy, "rb") if copy else open_file("/", path_there, size)  # noqa: SIM115
        if source is None:
            raise NodeError("{0} was changed while it was used".format(path_there))
        with source:
            source.seek(offset)
            store(root, "{0}/{1}".format(folder, path), source, size)


def digest(stream: Any, length: int = sys.maxsize) -> str:
    """Return the SHA-256 digest of so many bytes of a stream, from its position on."""
    state = hashlib.sha256()
    while piece := stream.read(min(_READ_SIZE, length)):
        state.update(piece)
        length -= len(piece)
    return state.hexdigest()


@as_module(ARGUMENT_SPEC, required_by={"file": ["copy"]}, required_if=[["remove_copy", True, ["copy"]]])
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Compare the directory or store a file, and return the module's result."""
    params = module.params
    try:
        if params["file"] or params["parts"]:
            if params["file"]:
                with open(params["copy"], "rb") as copy:
                    path = "{0}/{1}".format(params["folder"], params["file"])
                    store(params["directory"], path, copy, wanted=params["digest"])
            else:
                there = (params["directory"], params["folder"])
                store_parts(*there, params["parts"], params["source"], params["copy"])
            if params["remove_copy"]:  # here, and not by the controller, which may be killed meanwhile
                remove_pieces(params["copy"])
            return {"changed": True, "copied": sorted(params["parts"]) or [params["file"]]}
        if params["listed"]:
            return {"copied": [], "sizes": list_files(params["source"])}
        rest = (params["sizes"], params["by_size"], params["folder"], params["hashed"])
        needed, digests = compare(params["directory"], *rest)
        return {"copied": [], "needed": needed, "digests": digests}
    except OSError as error:
        where = str(error.filename or "")
        if not os.path.isabs(where):  # relative to a descriptor
            where = params["source"] if params["listed"] else params["directory"]
        raise NodeError("{0}: {1}".format(where, error.strerror or error)) from None


if __name__ == "__main__":
    main()
