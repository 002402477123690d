from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole


def test_a_file_gets_its_content_and_mode_and_its_directory_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    before = os.umask(0o077)
    try:
        write_whole(str(path), b"text", 0o644)
    finally:
        os.umask(before)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"text", 0o644)


def test_failed_write_leaves_the_file_unchanged_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(str(path), b"after", 0o600)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]

    def stays(_path: str) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "unlink", stays)
    with pytest.raises(OSError, match="No space"):
        write_whole(str(path), b"after", 0o600)


@pytest.mark.parametrize("failing", ["mkstemp", "fsync", "replace"])
def test_an_error_names_the_file_and_not_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def refused(*_args: object, **_kwargs: object) -> None:
        raise PermissionError(1, "Operation not permitted", str(tmp_path / ".rdm-provision-x1"))

    monkeypatch.setattr(tempfile if failing == "mkstemp" else os, failing, refused)
    path = tmp_path / "environment"
    with pytest.raises(PermissionError) as caught:
        write_whole(str(path), b"", 0o600)
    assert str(caught.value) == f"[Errno 1] Operation not permitted: '{path}'"
