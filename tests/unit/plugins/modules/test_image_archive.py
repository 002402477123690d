"""What the inspection of an archive reports of the node's file systems."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.modules import image_archive


def test_where_an_archive_and_the_cache_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path.resolve()
    mounts = f"1 0 8:1 / / rw - xfs /dev/sda rw\n2 1 0:52 / {root}/export rw - nfs4 server:/export rw\n"
    monkeypatch.setattr(image_archive, "read_text", {"/proc/self/mountinfo": mounts}.__getitem__)
    monkeypatch.setattr(image_archive, "disk", lambda path: {str(root / "cache"): {"free": 5}}[path])
    archive = root / "export" / "a.tar"
    archive.parent.mkdir()
    archive.touch()
    os.utime(archive, ns=(1_000, 1_700_000_000_000_000_000))
    (root / "shared").symlink_to(archive.parent)
    images: Any = image_archive.Images.__new__(image_archive.Images)
    images.path, images.cache_dir = str(root / "shared" / "a.tar"), str(root / "cache")
    assert images._storage() == {
        "file_system": "nfs4",
        "modified": 1_700_000_000_000_000_000,
        "cache_file_system": "xfs",
        "cache_free": 5,
    }
