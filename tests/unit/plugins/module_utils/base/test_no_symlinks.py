"""What a training container's root leaves cannot lead a node's root to other files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.no_symlinks import list_files, open_file
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "step" / "inner").mkdir(parents=True)
    (folder / "step" / "inner" / "a").write_bytes(b"one")
    (folder / "latest").write_bytes(b"")
    return folder


def test_the_files_of_a_directory_are_listed_without_those_being_written(source: Path) -> None:
    (source / "next.partial").mkdir()
    (source / "next.partial" / "a").touch()
    (source / "b.partial").touch()
    (source / ".rdm-provision-1").touch()
    assert list_files(str(source)) == {"step/inner/a": 3, "latest": 0}
    assert list_files(str(source / "none")) is None
    assert list_files(f"//{source}/./step/") == {"inner/a": 3}


def test_file_is_not_removed_as_a_directory(source: Path) -> None:
    with pytest.raises(NodeError, match="latest is not a directory: give the directory that has it"):
        list_files(str(source / "latest"))


def test_a_directory_may_be_removed_while_files_are_listed(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = os.fwalk

    def removing(*given: Any, **more: Any) -> Iterator[Any]:
        for found in walk(*given, **more):
            yield found
            shutil.rmtree(source / "step", ignore_errors=True)

    monkeypatch.setattr(os, "fwalk", removing)
    assert list_files(str(source)) == {"latest": 0}


@pytest.mark.parametrize("there", ["step/link", "link"])
def test_a_link_to_anything_is_refused(source: Path, there: str) -> None:
    (source / there).symlink_to(source / "step")
    with pytest.raises(NodeError, match=f"{there} is a symbolic link, which is not followed on a node"):
        list_files(str(source))


def test_a_directory_is_not_reached_through_a_link(source: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(source)
    with pytest.raises(NodeError, match=f"other/step leads through a symbolic link to {source}/step"):
        list_files(str(tmp_path / "other" / "step"))
    with pytest.raises(NodeError, match=r"other is not a directory"):
        open_file(str(tmp_path), "other/latest")


def test_no_path_leads_out_of_its_root(source: Path) -> None:
    with pytest.raises(NodeError, match=r"step/\.\. has a part \.\."):
        open_file(str(source), "step/../latest")


def test_only_a_regular_file_of_the_right_size_is_opened(source: Path) -> None:
    assert open_file(str(source), "step") is None
    assert open_file(str(source), "latest", 1) is None
    found = open_file(str(source), "step/inner/a", 3)
    assert found is not None
    with found:
        assert found.read() == b"one"
