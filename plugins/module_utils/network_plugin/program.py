# SPDX-License-Identifier: GPL-3.0-or-later
"""The network plugin as one file that any Python 3.8 runs.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath
from typing import Dict, Mapping

from ansible_collections.rdm.provision.plugins.module_utils.base.zip_program import source_of, zip_program

_PACKAGE = "ansible_collections.rdm.provision.plugins.module_utils"
_PARTS = (
    *("driver", "functions", "options", "plugin", "program"),
    *("rdma_namespace", "server", "state"),
)
SOURCES = (
    "base/zip_program.py",
    "docker/api.py",
    "docker/plugin_client.py",
    "hardware/partitions.py",
    "hardware/sysfs_files.py",
    *("network_plugin/{0}.py".format(part) for part in _PARTS),
)
"""What the program is made of, in `module_utils`."""
MAIN = """import sys

from ansible_collections.rdm.provision.plugins.module_utils.network_plugin.plugin import main

sys.exit(main())
"""


def sources_in(module_utils: Path) -> Dict[str, bytes]:
    """Return the sources from a directory of the collection.

    Args:
        module_utils: the directory that this package is in.
    """
    return {name: (module_utils / name).read_bytes() for name in SOURCES}


def own_sources() -> Dict[str, bytes]:
    """Return the sources from where this is imported, such as the archive that Ansible packs for a node.

    What the plugin imports is in it only if the module that calls this imports the plugin.

    Raises:
        ImportError: a part is not in it.
    """
    found = {}
    for name in SOURCES:
        module = "{0}.{1}".format(_PACKAGE, name[: -len(".py")].replace("/", "."))
        found[name] = source_of(module).encode()
    return found


def program(sources: Mapping[str, bytes], main: bytes = MAIN.encode()) -> bytes:
    """Return an executable zip archive (PEP 441).

    Args:
        sources: what it is made of, by the path in `module_utils`.
        main: the script that it runs.
    """
    package = PurePosixPath(_PACKAGE.replace(".", "/"))
    return zip_program({str(package / source): content for source, content in sources.items()}, main)


def digest(content: bytes) -> str:
    """Return what a program is known by."""
    return "sha256:" + hashlib.sha256(content).hexdigest()[:16]
