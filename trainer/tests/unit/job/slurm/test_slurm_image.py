# SPDX-License-Identifier: GPL-3.0-or-later
"""How a node prepares and enters a job's image, and its errors."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pwd
from pathlib import Path
from typing import Any, NoReturn

import pytest

from rdm_core import config as configuration
from rdm_core.errors import TrainerError
from rdm_job.directory import JobDirectory
from rdm_job.protocol import Node, Request
from rdm_job.slurm import commands, image, verbs
from rdm_job.slurm.script import RUN_VARIABLE
from rdm_trainer.cli import main
from tests.unit.job.slurm.archives import archive, layer


def job_in(directory: Path, **slurm: Any) -> Path:
    """Make a job in an image, and return its directory as a task of srun on n2 finds it."""
    job = JobDirectory(directory / "jobs/gpt", "n2")
    job.make(Request("gpt", "n2", (Node("n2", "127.0.0.1", 1),)))
    config = configuration.from_dict({"launcher": {"kind": "slurm", "slurm": slurm}})
    job.write_resolved(configuration.dump(config))
    return job.path


@pytest.fixture
def on_n2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node whose only program is an enroot that does nothing; the value is its directory of programs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "enroot").write_text("#!/bin/sh\n")
    (programs / "enroot").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    variables = {"SLURMD_NODENAME": "n2", "SLURM_PROCID": "1", RUN_VARIABLE: "7.0", "USER": "me"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return programs


def refused(job: Path) -> str:
    """Return the node's message to the others when it cannot enter the image."""
    with pytest.raises(SystemExit, match="1"):
        main(["job", "enter", str(job)])
    message = json.loads((job / "nodes/7.0/1.jsonl").read_text().splitlines()[-1])
    assert message["type"] == "cannot"
    return str(message["reason"])


@pytest.mark.parametrize("name", ["image.sqsh", "image.tar", "image.tar.gz"])
def test_node_without_the_image_reports_it_to_the_others(tmp_path: Path, on_n2: Path, name: str) -> None:
    path = tmp_path / name
    job = job_in(tmp_path, image=str(path))
    assert refused(job) == f"n2 cannot read launcher.slurm.image {path}: No such file or directory."


def test_node_without_locks_or_without_the_user_reports_it(
    tmp_path: Path, on_n2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> NoReturn:
        raise OSError(37, "No locks available")

    path = tmp_path / "image.sqsh"
    path.touch()
    job = job_in(tmp_path, image=str(path))
    with monkeypatch.context() as here:
        here.setattr(fcntl, "flock", no_locks)
        assert refused(job) == "n2 cannot enter the image: [Errno 37] No locks available."
    monkeypatch.delenv("USER")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    assert "uid not found: 4000000" in refused(job)


@pytest.mark.parametrize(("name", "by_pyxis"), [("x.sqsh", True), ("x.sif", False), ("x", False)])
def test_pyxis_is_chosen_for_images_that_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, by_pyxis: bool
) -> None:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    monkeypatch.setattr(commands, "has_pyxis", lambda: True)
    monkeypatch.setattr(commands, "submit", lambda *_: 7)
    (tmp_path / name).touch()
    job = JobDirectory(tmp_path / "gpt", "login")
    request = Request("gpt", "login", (Node("login", "127.0.0.1", 1),))
    slurm = {"image": str(tmp_path / name)}
    verbs.start(job, request, configuration.from_dict({"launcher": {"kind": "slurm", "slurm": slurm}}))
    assert ("--container-image" in job.script.read_text()) == by_pyxis


def test_a_node_uses_the_runtime_that_runs_the_image(tmp_path: Path, on_n2: Path) -> None:
    path = tmp_path / "image.sif"
    path.touch()
    message = refused(job_in(tmp_path, image=str(path)))
    assert message == f"n2 has no apptainer, which would run launcher.slurm.image {path}."


@pytest.mark.parametrize(
    ("stand_in", "message"),
    [
        ("echo FATAL ERROR: no inodes. >&2; exit 1", "sqfstar failed on n2: FATAL ERROR: no inodes."),
        # More errors than a pipe holds, before it reads any input.
        ("echo {1..20000} >&2; echo Too much. >&2; exit 1", "sqfstar failed on n2: Too much."),
    ],
    ids=["early", "much"],
)
def test_error_of_sqfstar_is_attributed_to_it(
    tmp_path: Path, on_n2: Path, stand_in: str, message: str
) -> None:
    (on_n2 / "sqfstar").write_text(f"#!/bin/bash\n{stand_in}\n")
    (on_n2 / "sqfstar").chmod(0o755)
    path = archive(tmp_path / "image.tar", layer(("opt/much", "x" * 4_000_000, "")))
    job = job_in(tmp_path, image=str(path))
    with pytest.raises(TrainerError) as refused:
        image.prepare(job)
    assert str(refused.value) == message
    assert not [*(tmp_path / "jobs/.images").glob("*.new")]


@pytest.mark.parametrize("reload", [False, True])
def test_an_image_is_used_as_it_is_where_containers_are_recreated(
    tmp_path: Path, on_n2: Path, reload: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    # This is for `import -o FILE IMAGE`, which makes the file.
    (on_n2 / "enroot").write_text(
        f'#!/bin/sh\necho "$1" >>{calls}\n'
        'while [ $# -gt 1 ]; do [ "$1" = -o ] && echo made >"$2"; shift; done\n'
    )
    job = job_in(tmp_path, image="docker://registry/train:1", container="enroot", reload_container=reload)
    begun: list[list[str]] = []

    def become(_: str, command: list[str]) -> None:
        begun.append(command)
        raise SystemExit

    monkeypatch.setattr(os, "execvp", become)
    for _ in range(2):
        image.prepare(job)
        with pytest.raises(SystemExit):
            image.enter(job)
    words = calls.read_text().split()
    assert (words.count("import"), words.count("create") > 0) == ((2, False) if reload else (1, True))
    (made,) = (tmp_path / "jobs" / ".images").glob("*.sqsh")
    assert all((str(made) in command) is reload for command in begun)


def test_image_conversion_gets_the_user_variable(
    tmp_path: Path, on_n2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("USER")
    (on_n2 / "enroot").write_text('#!/bin/sh\necho "$USER" >"$3"\n')
    image.prepare(job_in(tmp_path, image="docker://registry/train:1", container="enroot"))
    (made,) = (tmp_path / "jobs" / ".images").glob("*.sqsh")
    assert made.read_text().strip() == pwd.getpwuid(os.getuid()).pw_name


def test_archive_digest_is_verified_before_conversion(tmp_path: Path, on_n2: Path) -> None:
    made = archive(tmp_path / "image.tar", layer(("etc/motd", "hello", "")))
    (on_n2 / "sqfstar").write_text(
        '#!/bin/sh\nfor last; do :; done\nwhile read -r _; do :; done\necho made >"$last"\n'
    )
    (on_n2 / "sqfstar").chmod(0o755)
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    kept = tmp_path / "jobs/.images"
    with pytest.raises(
        TrainerError, match=f"has the sha256 {digest}, and not the {'0' * 64} that it must have"
    ):
        image.prepare(job_in(tmp_path, image=str(made), image_sha256="0" * 64))
    assert list(kept.glob("*.sqsh")) == []
    # Case does not matter, and an unverified image is not used as a verified one.
    image.prepare(job_in(tmp_path, image=str(made)))
    image.prepare(job_in(tmp_path, image=str(made), image_sha256=digest.upper()))
    assert len(list(kept.glob("*.sqsh"))) == 2


def test_node_without_a_mount_source_reports_it_to_the_others(tmp_path: Path, on_n2: Path) -> None:
    (tmp_path / "image.sqsh").touch()
    mounts = ["/nowhere/data:/data", "/nowhere/else", str(on_n2)]
    job = job_in(tmp_path, image=str(tmp_path / "image.sqsh"), mounts=mounts)
    assert refused(job) == "n2 has no /nowhere/data, /nowhere/else, which launcher.slurm.mounts names."
