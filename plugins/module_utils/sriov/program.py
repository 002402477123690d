# SPDX-License-Identifier: GPL-3.0-or-later
"""The network plugin as one file that any Python 3.8 runs.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import io
import zipfile
from pathlib import Path, PurePosixPath
from typing import Dict, Mapping

_PACKAGE = "ansible_collections.rdm.provision.plugins.module_utils"
_PARTS = ("client", "driver", "functions", "options", "plugin", "program", "server", "state")
SOURCES = ("engine/docker_api.py", *("sriov/{0}.py".format(part) for part in _PARTS))
"""What the program is made of, in `module_utils`."""
_TIME = (1980, 1, 1, 0, 0, 0)  # the same sources make the same file
MAIN = """import sys

from ansible_collections.rdm.provision.plugins.module_utils.sriov.plugin import main

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
    """
    found = {}
    for name in SOURCES:
        module = importlib.import_module("{0}.{1}".format(_PACKAGE, name[: -len(".py")].replace("/", ".")))
        found[name] = inspect.getsource(module).encode()
    return found


def program(sources: Mapping[str, bytes], main: bytes = MAIN.encode()) -> bytes:
    """Return an executable zip archive (PEP 441).

    Args:
        sources: what it is made of, by the path in `module_utils`.
        main: the script that it runs.
    """
    files = {"__main__.py": main}
    for source, content in sources.items():
        name = PurePosixPath(_PACKAGE.replace(".", "/")) / source
        files[str(name)] = content
        for folder in name.parents:
            if folder.name:
                files.setdefault(str(folder / "__init__.py"), b"")
    output = io.BytesIO(b"#!/usr/bin/env python3\n")
    output.seek(0, io.SEEK_END)
    # Not compressed: another zlib would make another file of the same sources.
    with zipfile.ZipFile(output, "a", zipfile.ZIP_STORED) as archive:
        for path, content in sorted(files.items()):
            member = zipfile.ZipInfo(path, _TIME)
            member.external_attr = 0o644 << 16
            archive.writestr(member, content)
    return output.getvalue()


def digest(content: bytes) -> str:
    """Return what a program is known by."""
    return "sha256:" + hashlib.sha256(content).hexdigest()[:16]
