"""What the inspection of an archive reads, and what it reports of the node's file systems."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_cache import (
    ArchiveUnread,
    file_identity,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import ArchiveIndex
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive
from ansible_collections.rdm.provision.plugins.modules import image_archive

from tests.image_archives import MadeImage, layer, put, saved
from tests.unit.plugins.modules.running import Failed, run_module


def test_where_an_archive_and_the_cache_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path.resolve()
    mounts = f"1 0 8:1 / / rw - xfs /dev/sda rw\n2 1 0:52 / {root}/export rw - nfs4 server:/export rw\n"
    monkeypatch.setattr(image_archive, "read_text", {"/proc/self/mountinfo": mounts}.__getitem__)
    monkeypatch.setattr(image_archive, "disk", lambda path: {str(root / "cache"): {"free": 5}}[path])
    archive = root / "export" / "a.tar"
    archive.parent.mkdir()
    archive.touch()
    (root / "shared").symlink_to(archive.parent)
    images: Any = image_archive.Images.__new__(image_archive.Images)
    images.index = SimpleNamespace(
        images=[SimpleNamespace(ids=[one, "sha256:3"]) for one in ("sha256:2", "sha256:1")]
    )
    images.path, images.cache_dir = str(root / "shared" / "a.tar"), str(root / "cache")
    assert images._storage() == {
        "file_system": "nfs4",
        "images": ["sha256:1", "sha256:2"],
        "cache_file_system": "xfs",
        "cache_free": 5,
    }


def test_an_archive_that_another_node_has_read_is_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = put(tmp_path, gzip.compress(saved(MadeImage([layer("one")], ["example/app:1"]))))
    params = {"path": path, "remote_src": True, "sha256": "", "state": "inspected", "file": "", "index": None}

    def index(cache: str, **more: Any) -> ArchiveIndex:
        return image_archive.archive_index(
            {**params, "cache_dir": str(tmp_path / cache), "read": True, **more}
        )

    with pytest.raises(ArchiveUnread) as unread:
        index("n2", read=False)
    assert not (tmp_path / "n2").exists()
    read = index("n1")
    known = {"file": unread.value.file, "index": read.to_json()}
    with monkeypatch.context() as patch:
        patch.delattr(image_archive, "index_archive")
        assert index("n2", **known) == read
        assert index("n2") == read, "it is cached"
    put(tmp_path, gzip.compress(saved(MadeImage([layer("two")], ["example/app:2"]))))
    assert index("n3", **known) != read, "its file is another one"


def test_of_a_plain_archive_another_node_has_found_only_the_digest(tmp_path: Path) -> None:
    path = put(tmp_path, saved(MadeImage([layer("one")], ["example/app:1"])))
    own = index_archive(path)
    claimed = own._replace(images=[own.images[0]._replace(ids=["sha256:other"])], sha256=64 * "1")
    params = {"path": path, "remote_src": True, "sha256": 64 * "1", "state": "inspected", "read": True}
    known = {"file": file_identity(path), "index": claimed.to_json(), "cache_dir": str(tmp_path / "cache")}
    assert image_archive.archive_index({**params, **known}) == own._replace(sha256=64 * "1")


def test_removing_a_copy_is_refused_without_one() -> None:
    with pytest.raises(Failed, match=r"remove_copy .* copy$"):
        run_module(image_archive, {"path": "/x", "remove_copy": True})
