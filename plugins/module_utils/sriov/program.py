# SPDX-License-Identifier: GPL-3.0-or-later
"""The network plugin as one file that any Python 3.8 runs."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path, PurePosixPath

_PACKAGE = PurePosixPath("ansible_collections/rdm/provision/plugins/module_utils")
_SOURCES = ("engine/docker_api.py", "sriov/*.py")
_TIME = (1980, 1, 1, 0, 0, 0)  # the same sources make the same file


def program(module_utils: Path, main: bytes) -> bytes:
    """Return an executable zip archive (PEP 441).

    Args:
        module_utils: the directory of the collection that this package is in.
        main: the script that it runs.
    """
    files = {"__main__.py": main}
    for pattern in _SOURCES:
        for source in sorted(module_utils.glob(pattern)):
            name = _PACKAGE / source.relative_to(module_utils).as_posix()
            files[str(name)] = source.read_bytes()
            for folder in name.parents:
                if folder.name:
                    files.setdefault(str(folder / "__init__.py"), b"")
    output = io.BytesIO(b"#!/usr/bin/env python3\n")
    output.seek(0, io.SEEK_END)
    with zipfile.ZipFile(output, "a", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(files.items()):
            member = zipfile.ZipInfo(path, _TIME)
            member.external_attr = 0o644 << 16
            archive.writestr(member, content, zipfile.ZIP_DEFLATED)
    return output.getvalue()
