# SPDX-License-Identifier: GPL-3.0-or-later
"""Directories of jobs are removed, even after a removal was killed, and when nodes share them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rdm_job import removal
from rdm_job.directory import JobDirectory
from rdm_job.protocol import Node, Request, State

NODES = (Node("n1", "10.0.0.100", 2), Node("n2", "10.0.0.101", 2))


class KilledError(BaseException):
    """Stands in for SIGKILL: our code does not handle it."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    monkeypatch.setenv("RDM_NODE", "n1")
    make(tmp_path)
    return tmp_path


def make(root: Path) -> None:
    """Make an ended job with files to remove."""
    job = JobDirectory(root / "demo-1", "n1")
    job.make(Request("demo-1", "n1", NODES, ""))
    job.write_state(State(job="demo-1", directory=str(job.path), state="finished", started=1.0, ended=2.0))
    for number in range(20):
        path = job.path / f"checkpoints/step{number}/model.pt"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * 4096)


def killed_at_file(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the job and be killed after some files."""
    unlink = os.unlink
    gone: list[Any] = []

    def count(*arguments: Any, **named: Any) -> None:
        if len(gone) == number:
            raise KilledError
        gone.append(arguments)
        unlink(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", count)
        with pytest.raises(KilledError):
            removal.remove(["demo-1"])


@pytest.mark.parametrize("number", [0, 5])
def test_rest_of_a_killed_removal_is_removed_by_the_next(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    killed_at_file(number, monkeypatch)
    assert JobDirectory.all() == [], "it is listed no more"
    make(root)  # a new job of that name does not get in the way
    seen = removal.remove([], dry_run=True)
    assert [one["job"] for one in seen["removed"]] == ["demo-1"]
    assert len(list(root.iterdir())) == 2
    both = removal.remove(["demo-1"])
    assert ([one["job"] for one in both["removed"]], both["kept"]) == (["demo-1", "demo-1"], [])
    assert (both["removed"][0], list(root.iterdir())) == (seen["removed"][0], [])


def test_nodes_that_share_a_directory_report_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (ours,) = removal.remove(["demo-1"], dry_run=True)["removed"]
    monkeypatch.setenv("RDM_NODE", "n2")
    (theirs,) = removal.remove(["demo-1"], dry_run=True)["removed"]
    assert ours["identity"] == theirs["identity"]
    # A directory that one node is removing has the same identity on the other.
    killed_at_file(5, monkeypatch)
    (late,) = removal.remove(["demo-1"], dry_run=True)["removed"]
    assert (late["identity"], late["bytes"] < theirs["bytes"]) == (theirs["identity"], True)
    removal.remove([])
    make(root)
    (other,) = removal.remove(["demo-1"], dry_run=True)["removed"]
    assert other["identity"] != theirs["identity"], "it is another one of that name"


@pytest.mark.parametrize("step", ["state", "_size", "_delete"])
def test_removal_by_another_node_in_between_is_no_error(
    root: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before each step another node removes the whole directory."""
    real = getattr(removal, step)

    def after_the_other(*arguments: Any) -> Any:
        for path in root.iterdir():
            shutil.rmtree(path)
        return real(*arguments)

    monkeypatch.setattr(removal, step, after_the_other)
    assert removal.remove(["demo-1"])["kept"] == []
    assert list(root.iterdir()) == []


def test_files_removed_by_another_node_are_skipped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = os.unlink

    def twice(*arguments: Any, **named: Any) -> None:
        unlink(*arguments, **named)
        unlink(*arguments, **named)

    monkeypatch.setattr(os, "unlink", twice)
    assert [one["job"] for one in removal.remove(["demo-1"])["removed"]] == ["demo-1"]
    assert list(root.iterdir()) == []


def test_files_that_cannot_be_deleted_are_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any, **_named: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "unlink", refuse)
    for _ in range(2):
        assert removal.remove(["demo-1"])["kept"] == [
            {"job": "demo-1", "reason": "[Errno 13] Permission denied"}
        ]
