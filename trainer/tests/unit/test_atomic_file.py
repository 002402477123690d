"""A file that is written in one step."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdm_core.atomic_file import write_atomically


def test_a_file_is_replaced_with_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("before, and longer")
    write_atomically(path, "after", mode=0o600)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("after", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    with pytest.raises(OSError, match="taken"):
        write_atomically(path, "after")
    assert list(tmp_path.iterdir()) == [path]
