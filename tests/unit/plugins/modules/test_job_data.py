"""Data is written where jobs find it, and nowhere else, whatever the container's root left there."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from ansible import constants
from ansible_collections.rdm.provision.plugins.action import job_data as action
from ansible_collections.rdm.provision.plugins.action.job_data import files, others
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import NOTED
from ansible_collections.rdm.provision.plugins.modules import job_data
from ansible_collections.rdm.provision.plugins.modules.job_data import digest

from tests.unit.plugins.modules.running import Failed, run_module


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    directory = tmp_path / "jobs"
    directory.mkdir()
    return directory


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    file = tmp_path / "copy"
    file.write_bytes(b"tokens")
    return file


def store(jobs: Path, copy: Path, path: str) -> dict[str, Any]:
    return run_module(job_data, {"source": "/x", "directory": str(jobs), "file": path, "copy": str(copy)})


def compare(jobs: Path, **sizes: int) -> tuple[list[str], dict[str, str]]:
    result = run_module(job_data, {"source": "/x", "directory": str(jobs), "sizes": sizes})
    return result["needed"], result["digests"]


def test_a_file_is_stored_and_found(jobs: Path, copy: Path) -> None:
    assert compare(jobs, text=6) == (["text"], {})
    assert store(jobs, copy, "sets/a/text")["copied"] == ["sets/a/text"]
    stored = jobs / "data" / "sets" / "a" / "text"
    assert (stored.read_bytes(), stored.stat().st_mode & 0o777) == (b"tokens", 0o644)
    store(jobs, copy, "text")
    assert compare(jobs, text=6) == ([], {"text": hashlib.sha256(b"tokens").hexdigest()})
    assert compare(jobs, text=7) == (["text"], {})
    assert sorted(path.name for path in (jobs / "data").iterdir()) == ["sets", "text"]


def test_a_copy_is_removed_with_its_list_of_pieces_once_it_is_stored(jobs: Path, copy: Path) -> None:
    """Here, and not in another call: a run that is killed in between would leave it."""
    pieces = copy.with_name(copy.name + NOTED)
    pieces.touch()
    there = {"source": "/x", "directory": str(jobs), "copy": str(copy), "remove_copy": True}
    with pytest.raises(Failed, match="is not data/text"):
        run_module(job_data, {**there, "file": "text", "digest": "another"})
    assert (copy.exists(), pieces.exists()) == (True, True)
    run_module(job_data, {**there, "parts": {"a": [0, 2], "b": [2, 4]}})
    assert (copy.exists(), pieces.exists()) == (False, False)
    assert [(jobs / "data" / name).read_bytes() for name in "ab"] == [b"to", b"kens"]


@pytest.mark.parametrize("given", [{"remove_copy": True}, {"file": "text"}])
def test_operation_that_needs_a_copy_is_refused_without_one(jobs: Path, given: dict[str, Any]) -> None:
    with pytest.raises(Failed, match=f"{next(iter(given))}.*copy$"):
        run_module(job_data, {"source": "/x", "directory": str(jobs), **given})


def test_a_link_instead_of_a_file_is_replaced_and_not_followed(
    jobs: Path, copy: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "shadow"
    secret.write_bytes(b"secret")
    (jobs / "data").mkdir()
    (jobs / "data" / "text").symlink_to(secret)
    assert compare(jobs, text=6) == (["text"], {})
    store(jobs, copy, "text")
    assert (secret.read_bytes(), (jobs / "data" / "text").is_symlink()) == (b"secret", False)


@pytest.mark.parametrize("part", ["data", "data/sets"])
def test_a_link_instead_of_a_directory_is_refused(jobs: Path, copy: Path, tmp_path: Path, part: str) -> None:
    elsewhere = tmp_path / "etc"
    elsewhere.mkdir()
    (jobs / part).parent.mkdir(exist_ok=True)
    (jobs / part).symlink_to(elsewhere)
    with pytest.raises(Failed, match=rf"{part} is not a directory, perhaps a symbolic link: remove it"):
        store(jobs, copy, "sets/text")
    with pytest.raises(Failed, match="remove it"):
        run_module(job_data, {"source": "/x", "directory": str(jobs), "sizes": {"sets/text": 6}})
    assert list(elsewhere.iterdir()) == []


def test_a_directory_instead_of_a_file_is_refused_and_leaves_nothing(jobs: Path, copy: Path) -> None:
    (jobs / "data" / "text").mkdir(parents=True)
    assert compare(jobs, text=6) == (["text"], {})
    with pytest.raises(Failed, match="text is a directory: remove it"):
        store(jobs, copy, "text")
    assert [path.name for path in (jobs / "data").iterdir()] == ["text"]


def stored(jobs: Path, parts: dict[str, list[int]], **given: str) -> list[str]:
    """Store parts of a copy or of a directory of the node below `data/gpt`; return what is there."""
    run_module(
        job_data, {"source": "/x", "directory": str(jobs), "folder": "data/gpt", "parts": parts, **given}
    )
    top = jobs / "data" / "gpt"
    return sorted(f"{path.relative_to(top)}={path.read_text()}" for path in top.rglob("*") if path.is_file())


def test_parts_of_one_copy_become_files(jobs: Path, copy: Path) -> None:
    parts = {"step/a": [0, 2], "b": [2, 4], "empty": [6, 0], "/out": [1, 1]}
    assert stored(jobs, parts, copy=str(copy)) == ["b=kens", "empty=", "out=o", "step/a=to"]
    with pytest.raises(Failed, match="the source of data/gpt/c is shorter than it was"):
        stored(jobs, {"c": [4, 3]}, copy=str(copy))
    with pytest.raises(Failed, match=r"data/gpt/.. has a part .."):
        stored(jobs, {"../c": [0, 1]}, copy=str(copy))
    copy.unlink()
    with pytest.raises(Failed, match=f"{copy}: No such file"):
        stored(jobs, {"c": [0, 1]}, copy=str(copy))
    assert [path.name for path in jobs.rglob("*c*")] == []


def test_files_of_the_nodes_own_directory_are_stored_and_no_link_is_followed(
    jobs: Path, copy: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "a").write_text("shard")
    (own / "link").symlink_to(copy)
    assert stored(jobs, {"a": [0, 5]}, source=str(own)) == ["a=shard"]
    with pytest.raises(Failed, match="own/link was changed while it was used"):
        stored(jobs, {"link": [0, 6]}, source=str(own))


def test_the_files_of_a_directory_are_listed(jobs: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a").write_text("shard")
    given = {"directory": str(jobs), "listed": True}
    assert run_module(job_data, {"source": str(tmp_path / "own"), **given})["sizes"] == {"a": 5}
    assert run_module(job_data, {"source": str(tmp_path / "none"), **given})["sizes"] is None


def test_files_of_the_controller_are_found_once_and_compared_by_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(tmp_path.parent))
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "b").write_bytes(b"tokens")
    (tmp_path / "sets" / ".metadata").write_bytes(b"of a checkpoint")
    (tmp_path / "a").symlink_to("sets/b")
    (tmp_path / "sets" / "loop").symlink_to(tmp_path)
    (tmp_path / "gone").symlink_to("nowhere")
    assert list(files(tmp_path)) == ["a", "sets/.metadata", "sets/b"]
    right = hashlib.sha256(b"tokens").hexdigest()
    assert list(others(tmp_path, {"a": right, "sets/b": "0"})) == ["sets/b"]


def test_a_run_reads_the_files_of_the_controller_once_for_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node has its own process, so results are shared in a file of the run."""
    read: list[str] = []

    def counted(stream: BinaryIO) -> str:
        read.append(Path(stream.name).name)
        return digest(stream)

    monkeypatch.setattr(action, "digest", counted)
    source, run = tmp_path / "source", tmp_path / "run"
    source.mkdir()
    run.mkdir()
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(run))
    for name in ("a", "b"):
        (source / name).write_text(name)
    right = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a", "b")}
    assert [list(others(source, right)) for _node in range(3)] == [[], [], []]
    assert list(others(source, {**right, "b": right["a"]})) == ["b"]
    assert read == ["a", "b"]
