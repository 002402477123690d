# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults planted in a training of two nodes with real agents: each is named, with node and rank.

Our trainer runs with the additions of ``planted``. To make a resource scarce, nodes have cgroups and a file
system of their own, so these tests must run as root. Everything that they start takes precedence on this
machine, so that faults are named as fast as on an idle one. Only tests marked `long` assert the promised
time: no cgroup keeps other work from the disk and the memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rdm_job.directory import JobDirectory
from tests.distributed.environments import tiny
from tests.distributed.limits import Limits, limited, with_precedence
from tests.distributed.nodes import TINY, Nodes, running
from tests.distributed.slurm_cluster import Slurm
from tests.distributed.slurm_cluster import running as slurm_running
from tests.distributed.sshd import run_sshd
from tests.waiting import wait_until

PROMISED_S = 30.0
"""The seconds within which a fault is named, not counting those in which other work on this machine kept a
process of the job, or this one, from a processor."""
GIVEN_UP_S = 600.0
PAUSE_S = 0.25
"""The pause after each step, so that a job is a small load; it counts as waiting."""
GIB = 1024**3

Culprit = dict[str, Any]
SLOW: Culprit = {"kind": "slow", "node": "n2", "rank": 1}
NAN: Culprit = {"kind": "nan", "node": "n1", "rank": 0}


class Watched:
    """A job that trains, and the verdicts on it.

    Args:
        job: Its directory on its master.
        groups: The cgroups of its processes and of the observers.
        within: The most seconds until a fault is named.
    """

    def __init__(self, job: JobDirectory, *groups: Limits, within: float = PROMISED_S) -> None:
        self.job, self._groups, self._within = job, groups, within
        self.seen: list[dict[str, Any]] = []

    def verdict(self) -> dict[str, Any]:
        self.seen.append(self.job.read_state().verdict)
        return self.seen[-1]

    def named(self) -> list[Culprit]:
        """Return the culprits named so far, each as often as it was named."""
        return [one for found in self.seen for one in found.get("culprits", ())]

    def wait_for_first_step(self) -> None:
        """Wait until it has taken a step."""

        def reached() -> tuple[int, str]:
            state = self.job.read_state()
            return int(self.job.progress().get("iteration") or 0), state.reason if state.has_ended else ""

        step, reason = wait_until("it trains", reached, any)
        assert step, reason

    def wait_until_cleared(self, culprit: Culprit) -> None:
        """Wait until a culprit is no longer named."""
        wait_until(
            f"{culprit} is no longer named",
            self.verdict,
            lambda found: found.get("verdict") and culprit not in found["culprits"],
        )

    def inject(self, culprit: Culprit, fault: Callable[[], object], verdict: str = "suspect") -> None:
        """Inject a fault, and wait until its culprit is named."""
        assert culprit not in self.named()
        before = [one.delays() for one in self._groups]
        fault()
        began = time.monotonic()
        found = wait_until(
            f"it is {verdict}, for {culprit}",
            self.verdict,
            lambda found: found.get("verdict") == verdict and culprit in found["culprits"],
            timeout=GIVEN_UP_S,
        )
        took = time.monotonic() - began
        delayed = max(map(Limits.delayed_since, self._groups, before))
        load = os.getloadavg()[0]
        message = f"{took:5.1f} s, {delayed:.1f} of delay, load {load:.0f}: {culprit['kind']}"
        print(f"{message}: {' '.join(found['evidence'])}")
        assert took <= self._within + delayed, message


@pytest.fixture(scope="module")
def first() -> Iterator[Limits]:
    with with_precedence() as limits:
        yield limits


@pytest.fixture
def within(request: pytest.FixtureRequest) -> float:
    """The most seconds until a fault is named: more without `long`, since other tests run meanwhile."""
    return PROMISED_S if request.node.get_closest_marker("long") else GIVEN_UP_S


@pytest.fixture
def nodes(tmp_path: Path, first: Limits) -> Iterator[Nodes]:
    (tmp_path / "pause").write_text(str(PAUSE_S))
    with running(Nodes(tmp_path, TINY)) as nodes:
        yield nodes


def master(nodes: Nodes, job: str) -> JobDirectory:
    return JobDirectory(nodes.folder / "n1" / job, "n1")


def test_slow_rank_and_rank_with_nan_loss_are_named(nodes: Nodes, first: Limits, within: float) -> None:
    nodes.run("watched")
    watched = Watched(master(nodes, "watched"), first, within=within)
    watched.wait_for_first_step()
    watched.inject(SLOW, lambda: (nodes.folder / "slow.1").write_text("0.8"))
    kinds = {SLOW["kind"], NAN["kind"]}
    # It names nothing until it is sure. Signs of other kinds come from other work on this machine.
    assert [one for one in watched.named() if one["kind"] in kinds] == [SLOW]
    watched.inject(NAN, (nodes.folder / "nan.0").touch)
    assert nodes.run_verb("n1", "stop", "watched", "--now")["stopped"]
    assert nodes.ended("watched")["verdict"]["verdict"] == "finished"


# --- other launchers ------------------------------------------------------------------------------------


def check_slow_and_nan_ranks(watched: Watched, folder: Path, slow: Culprit, nan: Culprit) -> None:
    """Check that a rank that sleeps is named, and then one whose loss is NaN."""
    watched.wait_for_first_step()
    watched.inject(slow, lambda: (folder / f"slow.{slow['rank']}").write_text("0.8"))
    (folder / f"slow.{slow['rank']}").unlink()
    watched.inject(nan, (folder / f"nan.{nan['rank']}").touch)


OTHER_LAUNCHERS = [
    # The launcher that differs most from agents that start their own ranks, and takes the least time.
    pytest.param("mpirun", "rank"),
    pytest.param("mpirun", "agent", marks=pytest.mark.long),
    *(
        pytest.param(launcher, fault, marks=pytest.mark.long)
        for launcher in ("torchrun", "deepspeed")
        for fault in ("rank", "agent")
    ),
]


@pytest.mark.parametrize(("launcher", "fault"), OTHER_LAUNCHERS)
def test_faults_are_named_with_every_launcher(
    nodes: Nodes,
    first: Limits,
    within: float,
    tmp_path_factory: pytest.TempPathFactory,
    launcher: str,
    fault: str,
) -> None:
    """A rank sleeps, one has a NaN loss, and at the end a rank or an agent is killed."""
    with run_sshd(nodes, tmp_path_factory.mktemp("sshd")):
        nodes.start(launcher, f"launcher.kind={launcher}")
        watched = Watched(master(nodes, launcher), first, within=within)
        if fault == "rank":
            check_slow_and_nan_ranks(watched, nodes.folder, SLOW, NAN)
            lost, rank = nodes.process_of(1, launcher), 1
        else:
            watched.wait_for_first_step()
            lost, rank = nodes.agent_of("n2", launcher), None
        failure = {"kind": "failure", "node": "n2", "rank": rank}
        watched.inject(failure, lambda: os.kill(lost, signal.SIGKILL), "failed")
        wait_until("no process of it is left", lambda: nodes.left(launcher), lambda left: not left)


@pytest.fixture(scope="module")
def slurm(first: Limits, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm_running(Slurm(tmp_path_factory.mktemp("slurm")), "sbatch") as cluster:
        yield cluster


@pytest.mark.long
@pytest.mark.parametrize("fault", ["rank", "agent"])
@pytest.mark.parametrize("step", ["agents", "ranks"])
def test_faults_are_named_in_slurm(slurm: Slurm, first: Limits, step: str, fault: str) -> None:
    """The same for ranks that agents start, and for those that Slurm starts."""
    job = f"{step}-{fault}"
    folder = slurm.folder / f"planted-{job}"
    folder.mkdir()
    (folder / "pause").write_text(str(PAUSE_S))
    config = tiny(folder, "slurm", optimisation=TINY["optimisation"], logging=TINY["logging"])
    slurm.submit(
        job,
        "launcher.nodes=2",
        f"launcher.slurm.step={step}",
        "launcher.devices_per_node=1",
        "checkpoint.interval=0",
        config=config,
    )
    # Before it runs, its master is the host that submitted it.
    assert slurm.wait_for_state(job, "running", "failed", "finished")["state"] == "running"
    watched = Watched(JobDirectory.of_master(slurm.jobs / job), first)
    if fault == "rank":
        slow, nan = ({**one, "node": f"t{one['rank'] + 2}"} for one in (SLOW, NAN))
        check_slow_and_nan_ranks(watched, folder, slow, nan)
        lost = json.loads((slurm.jobs / job / "ranks/t3/1.json").read_text())["pid"]
        failure = {"kind": "failure", "node": "t3", "rank": 1}
        watched.inject(failure, lambda: os.kill(lost, signal.SIGKILL), "failed")
    else:
        watched.wait_for_first_step()
        failure = {"kind": "failure", "node": "t3", "rank": None}
        watched.inject(failure, lambda: slurm.kill_agent(job, "t3"), "failed")


# --- what takes longer ----------------------------------------------------------------------------------


@pytest.fixture
def limits(nodes: Nodes) -> Iterator[dict[str, Limits]]:
    """Cgroups of the nodes. The second one has a small disk, too, and another DeepSpeed."""
    (nodes.folder / "other/deepspeed-0.0.1.dist-info").mkdir(parents=True)
    (nodes.folder / "other/deepspeed-0.0.1.dist-info/METADATA").write_text("Version: 0.0.1\n")
    nodes.environments["n2"]["PYTHONPATH"] = str(nodes.folder / "other")
    node_disk = nodes.folder / "n2"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", node_disk], check=True)
    try:
        with contextlib.ExitStack() as stack:
            found = {node: stack.enter_context(limited("cpu", "memory")) for node in ("n1", "n2")}
            stack.enter_context(running(nodes))
            yield found
    finally:
        subprocess.run(["umount", node_disk], check=True)


QUOTA = 0.4
"""Share of a processor: two nodes do not need the whole machine, and each is throttled."""
EQUAL_S = 45.0
"""How long all nodes have the same quota and none may be named: twice the time that naming one takes."""


@pytest.mark.long
def test_each_planted_fault_is_named(nodes: Nodes, limits: dict[str, Limits], first: Limits) -> None:
    job, folder, small = "planted", nodes.folder, limits["n2"]
    watched = Watched(master(nodes, job), first, *limits.values())
    version = {"kind": "version", "node": "n2", "rank": None}
    watched.inject(version, lambda: nodes.start(job, "checkpoint.interval=1000000"))
    small.memory(3 * GIB)
    for node, one in limits.items():
        one.take_all(nodes.agent_of(node, job))
    watched.wait_for_first_step()

    def write(name: str, value: str) -> Callable[[], object]:
        return lambda: (folder / name).write_text(value)

    watched.inject(SLOW, write("slow.1", "0.8"))
    (folder / "slow.1").unlink()
    watched.wait_until_cleared(SLOW)

    (folder / "pause").write_text("0")
    for one in limits.values():
        one.processors(QUOTA)
    until = time.monotonic() + EQUAL_S
    wait_until("all had the same for a while", watched.verdict, lambda _: time.monotonic() > until)
    processors = {"kind": "processors", "node": "n2", "rank": 1}
    assert [one for one in watched.named() if one["kind"] == "processors"] == []
    watched.inject(processors, lambda: small.processors(QUOTA / 2))
    assert not [one for one in watched.named() if one["kind"] == "processors" and one["node"] == "n1"]
    for one in limits.values():
        one.processors(None)
    (folder / "pause").write_text(str(PAUSE_S))
    watched.wait_until_cleared(processors)

    memory = {"kind": "memory", "node": "n2", "rank": 1}
    watched.inject(memory, write("grow.1", str(1.9 * GIB)))

    def fill() -> None:
        with contextlib.suppress(OSError), (folder / "n2/filler").open("wb") as file:
            while True:
                file.write(bytes(1 << 20))

    disk = {"kind": "disk", "node": "n2", "rank": None}
    watched.inject(disk, fill)
    (folder / "n2/filler").unlink()
    watched.wait_until_cleared(disk)

    watched.inject(NAN, (folder / "nan.0").touch)
    agent = psutil.Process(nodes.agent_of("n2", job))
    watched.inject({"kind": "failure", "node": "n2", "rank": None}, agent.kill, "failed")
    wait_until("no process of it is left", lambda: nodes.left(job), lambda left: not left)
