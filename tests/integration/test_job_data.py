"""A data directory is copied to a node once, and again if it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import NOTED

from tests.integration.plays import Played, run_plays


def bring(
    directory: Path,
    *flags: str,
    brought: dict[str, Any] | None = None,
    remote_src: bool = False,
    times: int = 1,
) -> Played:
    task = {
        "name": "Bring it",
        "rdm.provision.job_data": {
            "source": str(directory / "tokens"),
            "directory": str(directory / "jobs"),
            "brought": brought or {},
            "remote_src": remote_src,
        },
    }
    return run_plays(directory, [{"tasks": [task]}] * times, *flags)


def test_data_is_copied_once_and_when_changed(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "tokens" / "sets").mkdir(parents=True)
    (tmp_path / "tokens" / "a.bin").write_bytes(b"one")
    (tmp_path / "tokens" / "sets" / "b.bin").write_bytes(b"two")
    there = tmp_path / "jobs" / "data"
    checked = bring(tmp_path, "--check")
    assert (checked.status, checked.changes) == (0, [1]), checked.output
    assert not there.exists()
    brought = bring(tmp_path, times=2)
    assert (brought.status, brought.changes) == (0, [1, 0]), brought.output
    assert [(there / name).read_bytes() for name in ("a.bin", "sets/b.bin")] == [b"one", b"two"]
    (tmp_path / "tokens" / "a.bin").write_bytes(b"ONE")
    (there / "mine").touch()
    again = bring(tmp_path)
    assert again.results["Bring it"]["copied"] == ["a.bin"], again.output
    assert (there / "a.bin").read_bytes() == b"ONE"
    assert (there / "mine").exists()
    # From here on other nodes have brought two files, and one of them differs.
    copies = {name: tmp_path / f"{name}.tar" for name in ("a.bin", "c.bin")}
    for name, copy in copies.items():
        (tmp_path / "tokens" / name).write_bytes(b"new " + name.encode())
        copy.write_bytes(b"new a.bin")
        copy.with_name(copy.name + NOTED).touch()
    passed_on = bring(tmp_path, brought={name: str(copy) for name, copy in copies.items()})
    assert passed_on.status == 0, passed_on.output
    assert [(there / name).read_bytes() for name in copies] == [b"new a.bin", b"new c.bin"]
    assert "c.bin is copied from the controller" in passed_on.output
    assert "a.bin is copied" not in passed_on.output
    assert not list(tmp_path.glob("*.tar*")), "what was brought is left"


def test_node_stores_received_files_before_it_fails_for_missing_ones(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    copy = tmp_path / "n1.tar"
    copy.write_bytes(b"onetwo")
    copy.with_name(copy.name + NOTED).touch()
    brought = {
        "needed": ["a", "b"],
        "own": {},
        "copies": {str(copy): {"a": [3, 3]}},
        "problem": "n2 cannot send",
    }
    checked = bring(tmp_path, "--check", brought=brought, remote_src=True)
    assert checked.results["Bring it"]["copied"] == ["a", "b"], checked.output
    assert not (tmp_path / "jobs" / "data").exists()
    stored = bring(tmp_path, brought=brought, remote_src=True)
    assert stored.status == 2
    assert "n2 cannot send" in stored.output
    assert (tmp_path / "jobs" / "data" / "a").read_bytes() == b"two"
    assert not list(tmp_path.glob("*.tar*")), "what was brought is left"
