# SPDX-License-Identifier: GPL-3.0-or-later
"""Small Docker archives for tests."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path


def layer(*entries: tuple[str, str | None, str]) -> bytes:
    """Return a layer of (path, content, target of a hard link); a directory has neither."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as made:
        for name, content, link in entries:
            member = tarfile.TarInfo(name)
            if link:
                member.type, member.linkname = tarfile.LNKTYPE, link
            elif content is None:
                member.type = tarfile.DIRTYPE
            member.size = len(content or "")
            made.addfile(member, io.BytesIO((content or "").encode()))
    return packed.getvalue()


def archive(path: Path, *layers: bytes, manifest: str | None = None) -> Path:
    """Make an archive of layers, the lowest first, with their manifest or the given one."""
    names = [f"{number}.tar" for number in range(len(layers))]
    parts = dict(zip(names, layers, strict=True))
    parts["blobs/sha256/1234"] = json.dumps({"config": {"Env": ["PATH=/opt/bin:/bin"]}}).encode()
    if manifest is None:
        manifest = json.dumps([{"Config": "blobs/sha256/1234", "Layers": names}])
    parts["manifest.json"] = manifest.encode()
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as made:
        for name, content in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return path
