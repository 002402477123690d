# SPDX-License-Identifier: GPL-3.0-or-later
"""An archive is read once."""

from __future__ import annotations

import errno
import gzip
import os
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.images import archive_cache
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_cache import (
    cached_index,
    forget_index,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import ArchiveMissing

from tests.image_archives import (
    MadeImage,
    digest,
    layer,
    put,
    saved,
)


def test_a_compressed_archive_is_read_once(
    tmp_path: Path, image: MadeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = str(tmp_path / "cache")
    data = gzip.compress(saved(image))
    path = put(tmp_path, data)
    first = cached_index(path, "", cache)
    with monkeypatch.context() as patch:
        patch.delattr(archive_cache, "index_archive")
        assert cached_index(path, digest(data)[7:].upper(), cache) == first
    changed = MadeImage([layer("new")], ["example/app:2"])
    put(tmp_path, gzip.compress(saved(changed)))
    assert cached_index(path, "", cache).images[0].ids == [changed.id]
    forget_index(path, cache)
    assert not (tmp_path / "cache").exists()


def test_only_the_digest_of_a_plain_archive_is_cached(tmp_path: Path, image: MadeImage) -> None:
    path = put(tmp_path, saved(image))
    cached_index(path, "", str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()
    cached_index(path, digest(saved(image))[7:], str(tmp_path / "cache"))
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_wrong_digest_is_named(tmp_path: Path, image: MadeImage) -> None:
    data = saved(image)
    path = put(tmp_path, data)
    for _again in range(2):
        with pytest.raises(NodeError, match=f"image.tar has sha256 {digest(data)[7:]}, not {64 * '0'}"):
            cached_index(path, 64 * "0", str(tmp_path / "cache"))


def test_cache_of_a_missing_archive_serves_its_removal(tmp_path: Path, image: MadeImage) -> None:
    cache = str(tmp_path / "cache")
    path = put(tmp_path, gzip.compress(saved(image)))
    before = cached_index(path, "", cache)
    Path(path).unlink()
    assert cached_index(path, "", cache, stale=True) == before
    with pytest.raises(ArchiveMissing):
        cached_index(path, "", cache)
    forget_index(path, cache)
    with pytest.raises(ArchiveMissing):
        cached_index(path, "", cache, stale=True)


def test_a_damaged_cache_is_recreated(tmp_path: Path, image: MadeImage) -> None:
    cache = tmp_path / "cache"
    path = put(tmp_path, gzip.compress(saved(image)))
    index = cached_index(path, "", str(cache))
    for text in ('{"identity"', "[]", "{}", '{"index": {"images": []}}'):
        next(cache.iterdir()).write_text(text)
        assert cached_index(path, "", str(cache)) == index


def test_archive_is_read_without_a_writable_cache(tmp_path: Path, image: MadeImage) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    path = put(tmp_path, gzip.compress(saved(image)))
    assert cached_index(path, "", str(blocked / "cache")).images[0].ids == [image.id]


@pytest.mark.parametrize("who", ["all", "another user"])
def test_cache_is_not_used_where_another_user_can_create_links(
    tmp_path: Path, image: MadeImage, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    path = put(tmp_path, gzip.compress(saved(image)))
    if who == "all":
        cache.chmod(0o777)
    else:
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert cached_index(path, "", str(cache)).images[0].ids == [image.id]
    assert not list(cache.iterdir())


def test_a_full_disk_below_the_cache_is_no_problem(
    tmp_path: Path, image: MadeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = put(tmp_path, gzip.compress(saved(image)))
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        assert cached_index(path, "", str(tmp_path / "cache")).images[0].tags == image.tags
    assert not (tmp_path / "cache").exists()


def test_a_file_is_identified_by_more_than_its_time_and_size(tmp_path: Path) -> None:
    path = put(tmp_path, b"first")
    first = Path(path).stat()
    before = archive_cache.file_identity(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert archive_cache.file_identity(str(link)) == before
    copy = tmp_path / "copy"
    copy.write_bytes(b"other")
    os.utime(copy, ns=(first.st_atime_ns, first.st_mtime_ns))
    copy.replace(path)
    assert archive_cache.file_identity(path) != before
