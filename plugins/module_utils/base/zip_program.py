# SPDX-License-Identifier: GPL-3.0-or-later
"""Packs a Python program of several files into one file that Python 3.8 or newer runs.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import sys
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Dict, Iterator, List, Mapping, Tuple

COLLECTION = "ansible_collections.rdm.provision"
_TIME = (1980, 1, 1, 0, 0, 0)  # the same sources make the same file


def packed_program(collection: Path, main: str) -> bytes:
    """Return a script, packed with the collection's modules that it imports.

    Raises:
        ImportError: an import is neither in the collection nor in the standard library.
        OSError: a file of the collection cannot be read.
    """
    sources: Dict[str, bytes] = {}
    pending = [("the script", main)]
    while pending:
        name, text = pending.pop()
        for module, names in _imports(text):
            for path in _files(collection, name, module, names):
                archived = "{0}/{1}".format(COLLECTION.replace(".", "/"), path)
                if archived not in sources:
                    sources[archived] = (collection / path).read_bytes()
                    pending.append((path, sources[archived].decode("utf-8")))
    return zip_program(sources, main.encode())


def _imports(text: str) -> Iterator[Tuple[str, List[str]]]:
    """Yield the modules that a source imports, each with the names imported from it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), [alias.name for alias in node.names]


def _files(collection: Path, importer: str, module: str, names: List[str]) -> List[str]:
    """Return the files of the collection behind one import; none for Python's own modules."""
    if not module.startswith(COLLECTION + "."):
        # Python 3.10 and newer knows the names.
        known = getattr(sys, "stdlib_module_names", None)
        if known is None or module.partition(".")[0] in known:
            return []
        raise ImportError("{0} imports {1}, which a node may not have".format(importer, module))
    path = module[len(COLLECTION) + 1 :].replace(".", "/")
    modules = ["{0}/{1}".format(path, name) for name in names] if (collection / path).is_dir() else [path]
    found = [one + ".py" for one in modules if (collection / (one + ".py")).is_file()]
    if not modules or len(found) < len(modules):
        what = " or ".join(sorted({one.replace("/", ".") for one in modules})) or module
        raise ImportError("{0} imports {1}.{2}, which does not exist".format(importer, COLLECTION, what))
    return found


def zip_program(sources: Mapping[str, bytes], main: bytes) -> bytes:
    """Return an executable zip archive (PEP 441).

    Args:
        sources: path in the archive -> content; packages are created as needed.
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
    # Not compressed, so that the same sources give the same file with any zlib.
    with zipfile.ZipFile(output, "a", zipfile.ZIP_STORED) as archive:
        for path, content in sorted(files.items()):
            member = zipfile.ZipInfo(path, _TIME)
            member.external_attr = 0o644 << 16
            archive.writestr(member, content)
    return output.getvalue()


def digest(program: bytes) -> str:
    """Return a program's digest, as it is recorded and compared."""
    return "sha256:" + hashlib.sha256(program).hexdigest()[:16]


def digest_of(path: str) -> str:
    """Return the digest of a program's file; "" if it cannot be read."""
    try:
        return digest(Path(path).read_bytes())
    except OSError:
        return ""


def to_argument(program: bytes) -> str:
    """Return a program as text, for the argument of a module."""
    return base64.b64encode(zlib.compress(program)).decode()


def from_argument(text: str) -> bytes:
    """Return the program of :func:`to_argument`."""
    return zlib.decompress(base64.b64decode(text))
