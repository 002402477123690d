# SPDX-License-Identifier: GPL-3.0-or-later
"""The network plugin as one file that any Python 3.8 runs."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from ansible_collections.rdm.provision.plugins.module_utils.node.zip_program import zip_program

_PACKAGE = PurePosixPath("ansible_collections/rdm/provision/plugins/module_utils")
_SOURCES = ("engine/docker_api.py", "sriov/*.py")


def program(module_utils: Path, main: bytes) -> bytes:
    """Return an executable zip archive (PEP 441).

    Args:
        module_utils: the directory of the collection that this package is in.
        main: the script that it runs.
    """
    sources = {
        str(_PACKAGE / source.relative_to(module_utils).as_posix()): source.read_bytes()
        for pattern in _SOURCES
        for source in sorted(module_utils.glob(pattern))
    }
    return zip_program(sources, main)
