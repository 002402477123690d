# SPDX-License-Identifier: GPL-3.0-or-later
"""A Python program of several files as one that any Python 3.8 runs.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import importlib
import inspect
import io
import zipfile
from pathlib import PurePosixPath
from typing import Dict, Mapping

_TIME = (1980, 1, 1, 0, 0, 0)  # the same sources make the same file


def source_of(name: str) -> str:
    """Return a module's source from where it is imported, such as the archive that Ansible packs for a node.

    Args:
        name: its full name.

    Raises:
        ImportError: it is not there, or without its source.
    """
    module = importlib.import_module(name)
    try:
        return inspect.getsource(module)
    except OSError:
        raise ImportError("there is no source of {0}".format(name)) from None


def zip_program(sources: Mapping[str, bytes], main: bytes) -> bytes:
    """Return an executable zip archive (PEP 441).

    Args:
        sources: path in the archive -> content; the packages that they are in are made.
        main: the script that it runs.
    """
    files: Dict[str, bytes] = {"__main__.py": main}
    for path, content in sources.items():
        files[path] = content
        for folder in PurePosixPath(path).parents:
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
