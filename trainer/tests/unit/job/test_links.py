# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths that are the same on every node lead to each node's own files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rdm_core.errors import TrainerError
from rdm_job import processes
from rdm_job.links import Links


def test_linked_python_is_that_of_the_environment(tmp_path: Path) -> None:
    """Nodes with different paths of environments and jobs run the same command."""
    directory = tmp_path / "n1" / "jobs" / "one"
    directory.mkdir(parents=True)
    links = Links("one@mark", tmp_path)
    links.make(directory, directory / ".deepspeed_env")
    if sys.prefix != sys.base_prefix:
        assert links.python == str(
            tmp_path / "rdm-one@mark" / "environment" / "bin" / Path(sys.executable).name
        )
    command = [links.python, "-c", "import os, sys, rdm_job; print(os.path.realpath(sys.prefix))"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd="/", timeout=60)
    assert Path(done.stdout.strip()) == Path(sys.prefix).resolve()
    assert links.job.resolve() == directory
    links.make(directory, directory / ".deepspeed_env")
    links.remove()
    assert directory.is_dir()
    assert not links.path.exists()


def test_a_link_that_leads_elsewhere_is_repaired(tmp_path: Path) -> None:
    links = Links("one", tmp_path)
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        links.make(tmp_path / name, tmp_path / name / ".deepspeed_env")
    assert links.job.resolve() == tmp_path / "after"


def test_links_of_a_killed_agents_job_are_removed_by_the_next_job(tmp_path: Path) -> None:
    """Links stay if the job has an agent or a process, if they are new, or if another program made them."""
    long_ago = time.time() - 3600
    agent = """
import sys
from pathlib import Path
from rdm_job.links import Links

Links(sys.argv[1], Path(sys.argv[2])).make(Path(sys.argv[2]), Path(sys.argv[2], "exports"))
print("made", flush=True)
sys.stdin.read()
"""

    def start(job: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", agent, job, str(tmp_path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        return process

    for job in ("killed@1", "has-ranks@1", "fresh@1"):
        with start(job) as process:
            process.kill()
    (tmp_path / "rdm-somebody@1").mkdir()
    rank_environment = {**os.environ, processes.JOB_VARIABLE: "has-ranks@1"}
    with start("alive@1") as alive, subprocess.Popen(["sleep", "1000"], env=rank_environment) as rank:
        for path in tmp_path.glob("rdm-*"):
            if path.name != "rdm-fresh@1":
                os.utime(path, (long_ago, long_ago))
        links = Links("next@1", tmp_path)
        links.make(tmp_path, tmp_path / "exports")
        kept = {path.name.removeprefix("rdm-") for path in tmp_path.glob("rdm-*")}
        alive.kill()
        rank.kill()
    links.remove()
    assert kept == {"has-ranks@1", "fresh@1", "somebody@1", "alive@1", "next@1"}


@pytest.mark.parametrize("how", ["open", "file"])
def test_link_directory_of_another_user_is_refused(tmp_path: Path, how: str) -> None:
    links = Links("one", tmp_path)
    if how == "open":
        links.path.mkdir()
        links.path.chmod(0o777)
    else:
        links.path.symlink_to(tmp_path)
    with pytest.raises(TrainerError, match="is not this user's alone; remove it"):
        links.make(tmp_path, tmp_path / ".deepspeed_env")
