# SPDX-License-Identifier: GPL-3.0-or-later
"""A launcher that starts its workers, with a script and with Slurm."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path

import pytest

from rdm_job.processes import alive
from tests.distributed.members import Members, codes
from tests.distributed.slurm_cluster import Slurm
from tests.waiting import wait_until

PRINT_RANK = ["sh", "-c", 'echo "rank $NODE_RANK of $NNODES"']
# Like a service's command, it returns while the worker still runs, and prints the worker's id.
TEMPLATE = f"""\
export ROLE=worker MASTER_ADDR={{{{ MASTER_ADDR }}}} RDZV_PORT={{{{ RDZV_PORT }}}}
export RDZV_ID={{{{ RDZV_ID | quote }}}}
export RDZV_SECRET_FILE={{{{ RDZV_SECRET_FILE | quote }}}} RDZV_NAME=worker-{{{{ NODE_RANK }}}}
setsid {sys.executable} -m rdm_trainer rendezvous -- {{{{ COMMAND | map("quote") | join(" ") }}}} \\
  > {{{{ SPEC_DIR | quote }}}}/worker-{{{{ NODE_RANK }}}}.log 2>&1 < /dev/null &
echo worker {{{{ NODE_RANK }}}} is $!
"""


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """The options that make a launcher start its workers with a script."""
    (tmp_path / "worker.sh.j2").write_text(TEMPLATE)
    return [
        *("--worker-spec", str(tmp_path / "worker.sh.j2"), "--job-dir", str(tmp_path / "job")),
        *("--submit", "sh {spec}", "--cancel", "kill {id}"),
    ]


def _ended(folder: Path, log: str) -> None:
    """Wait until the workers that a launcher named have ended."""
    numbers = [int(line.split()[-1].rstrip(".")) for line in log.splitlines() if "is submitted" in line]
    assert numbers
    wait_until("its workers have ended", lambda: not any(alive(number) for number in numbers))
    assert not (folder / "job/workers/secret").exists()


def test_launcher_starts_all_workers_with_its_own_secret(
    members: Members, options: list[str], tmp_path: Path
) -> None:
    launcher = members.start("n0", PRINT_RANK, *options, count=3, secret="")
    assert codes(launcher) == [0], members.log("n0")
    for rank in (1, 2):
        assert f"rank {rank} of 3\n" in (tmp_path / f"job/workers/worker-{rank}.log").read_text()
    _ended(tmp_path, members.log("n0"))


@pytest.mark.parametrize("when", ["before the start", "after the start"])
def test_interrupted_launcher_cancels_its_workers(
    members: Members, options: list[str], tmp_path: Path, when: str
) -> None:
    if when == "before the start":
        # One worker never comes.
        template = (tmp_path / "worker.sh.j2").read_text()
        other = "{% if NODE_RANK == 2 %}sleep 1000 > /dev/null 2>&1 & echo worker 2 is $!; exit\n{% endif %}"
        (tmp_path / "worker.sh.j2").write_text(other + template)
    launcher = members.start("n0", ["sleep", "1000"], *options, count=3, secret="")
    members.wait_for_output("n0", "2 of 3 are here" if when == "before the start" else "All 3 members start")
    members.wait_for_output("n0", "Worker 2 is submitted")
    launcher.send_signal(signal.SIGINT)
    assert codes(launcher) == [130]
    _ended(tmp_path, members.log("n0"))


def test_failed_submission_ends_all_with_its_reason(
    members: Members, options: list[str], tmp_path: Path
) -> None:
    template = tmp_path / "worker.sh.j2"
    refuse = "{% if NODE_RANK == 2 %}echo no GPUs are left >&2; exit 4\n{% endif %}"
    template.write_text(refuse + template.read_text())
    launcher = members.start("n0", ["sleep", "1000"], *options, count=3, secret="")
    assert codes(launcher) == [1]
    assert "Error: Worker 2 was not submitted" in members.log("n0")
    assert "ended with exit code 4: no GPUs are left." in members.log("n0")
    _ended(tmp_path, members.log("n0"))


@pytest.fixture
def outside(members: Members, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Members:
    """Members whose commands use the Slurm cluster."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    return members


def test_launcher_starts_its_workers_in_slurm(outside: Members, slurm: Slurm, tmp_path: Path) -> None:
    options = [
        *("--worker-spec", "slurm", "--job-dir", str(tmp_path / "job dir")),
        *("--submit", "sbatch --parsable --partition=gpu2 {spec}", "--cancel", "scancel {id}"),
        *("--set", f"program={shlex.join((sys.executable, '-m', 'rdm_trainer'))}"),
    ]
    launcher = outside.start("n0", PRINT_RANK, *options, count=3, secret="")
    assert codes(launcher) == [0], outside.log("n0")
    (log,) = (tmp_path / "job dir/workers").glob("slurm-*.out")
    wait_until(
        "both ranks have written their lines",
        log.read_text,
        lambda text: "rank 1 of 3" in text and "rank 2 of 3" in text,
    )
    # An interruption cancels them.
    waiting = outside.start("n1", ["sleep", "1000"], *options, count=3, secret="")
    outside.wait_for_output("n1", "All workers are submitted")
    waiting.send_signal(signal.SIGTERM)
    assert codes(waiting) == [130]
    assert "are cancelled" in outside.log("n1")
    wait_until("nothing is in the queue", lambda: slurm.slurm("squeue", "-h") == "")
