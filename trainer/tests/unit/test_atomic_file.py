"""A file that is written in one step."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from rdm_core.atomic_file import replacing, write_atomically


def test_a_file_is_replaced_with_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("before, and longer")
    write_atomically(path, "after", mode=0o600)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("after", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_leaves_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    with pytest.raises(OSError, match="taken"):
        write_atomically(path, "after")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("durable", [False, True])
def test_interrupted_write_leaves_the_previous_file(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "state.json"
    path.write_text("before")

    def half(error: type[BaseException]) -> None:
        with replacing(path, durable=durable) as file:
            file.write(b"half")
            file.flush()
            assert path.read_text() == "before"
            raise error

    for error in (OSError, KeyboardInterrupt):
        with pytest.raises(error):
            half(error)
        assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "before"


def test_durable_file_is_synced_before_and_after_its_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "latest", list[tuple[str, bool]]()

    def sync(descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append(("directory" if is_directory else "file", path.exists()))

    monkeypatch.setattr(os, "fsync", sync)
    write_atomically(path, "7", durable=True)
    assert synced == [("file", False), ("directory", True)]
    write_atomically(path, "8")
    assert len(synced) == 2


def test_full_disk_at_fsync_leaves_the_previous_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "latest"
    write_atomically(path, "before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "after", durable=True)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
