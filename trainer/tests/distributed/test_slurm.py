# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs through a real Slurm: its controller and three of its node daemons run on this machine.

Slurm lets several node daemons run on one host for such tests. Their GPUs are files without devices behind
them. What the processes run is a small program, through ``launcher.program``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rdm_trainer
from rdm_job import network, processes
from rdm_job.directory import JobDirectory
from tests.waiting import DEADLINE_S, wait_until

NODES = ("t1", "t2", "t3")
DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1,bf_resolution=60,bf_hetjob_immediate
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
NodeName=t1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=2000 Gres=gpu:hgx:4
NodeName=t2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=2000 Gres=gpu:a10:4
NodeName=t3 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} CPUs=8 RealMemory=2000 Gres=gpu:a10:4
PartitionName=hgx Nodes=t1 State=UP
PartitionName=gpu2 Nodes=t[2-3] Default=YES MaxTime=1-00:00:00 State=UP
PartitionName=urgent Nodes=t[2-3] PriorityTier=9 State=UP
"""
GRES = """\
AutoDetect=off
NodeName=t1 Name=gpu Type=hgx File={folder}/nvidia[0-3]
NodeName=t[2-3] Name=gpu Type=a10 File={folder}/nvidia[0-3]
"""
PROGRAM = """\
import os, pathlib, signal, sys, time

where = [os.environ.get("IN", "")] if pathlib.Path("/only-in-the-image").exists() else []
rank, world, node = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "RDM_NODE"))
# In one piece: ranks of a step share a file, and an unbuffered print writes each word.
sys.stdout.write(" ".join(["rank", rank, "of", world, "on", node, *where]) + "\\n")
sys.stdout.flush()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
end = pathlib.Path(os.environ["RDM_JOB_DIR"]) / "end"
while not end.exists():
    time.sleep(0.05)
"""
WHOLE = "launcher.slurm.gres=gpu:a10:4"
"""With two nodes, all that the partition gpu2 has."""


class Image:
    """A Docker archive of two layers, whose programs are this machine's own, by mounts."""

    def __init__(self, folder: Path) -> None:
        self.archive = folder / "trainer.tar"
        self.mounts = sorted(
            {"/usr", sys.base_prefix, sys.prefix, str(Path(rdm_trainer.__file__).parents[1])}
        )
        program = f'#!/bin/sh\nexec {sys.executable} -m rdm_trainer "$@"\n'
        lower = self._layer(
            *((name, None) for name in ("dev", "etc", "home", "proc", "run", "sys", "tmp", "var/tmp")),
            *((f"etc/{name}", "") for name in ("passwd", "group", "hosts", "resolv.conf", "environment")),
            *((name, f"usr/{name}") for name in ("bin", "lib", "lib64", "sbin")),
            ("opt/rdm-trainer", program),
            ("removed", ""),
        )
        upper = self._layer(("only-in-the-image", ""), (".wh.removed", ""))
        config = json.dumps({"config": {"Env": ["IN=image", "PATH=/usr/bin:/bin"]}}).encode()
        manifest = [{"Config": "c0ffee.json", "Layers": ["1/layer.tar", "2/layer.tar"]}]
        parts = {
            "1/layer.tar": lower,
            "2/layer.tar": upper,
            "c0ffee.json": config,
            "manifest.json": json.dumps(manifest).encode(),
        }
        with tarfile.open(self.archive, "w") as archive:
            for name, content in parts.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))

    @staticmethod
    def _layer(*entries: tuple[str, str | None]) -> bytes:
        """A layer of directories (None), links (`usr/…`) and files (their content)."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as layer:
            for name, content in entries:
                member = tarfile.TarInfo(name)
                member.mode = 0o755
                if content is None:
                    member.type = tarfile.DIRTYPE
                elif content.startswith("usr/"):
                    member.type, member.linkname = tarfile.SYMTYPE, content
                else:
                    member.size = len(content.encode())
                layer.addfile(member, io.BytesIO((content or "").encode()) if member.isfile() else None)
        return packed.getvalue()

    @property
    def options(self) -> list[str]:
        """What has a job run in it."""
        return [
            f"launcher.slurm.image={self.archive}",
            f"launcher.slurm.mounts={json.dumps(self.mounts)}",
            "launcher.slurm.image_program=/opt/rdm-trainer",
            "launcher.slurm.container=charliecloud",
        ]


class Slurm:
    """A cluster of three nodes, and what its login host is asked."""

    more_configuration = ""
    """Further lines of slurm.conf."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = folder / "jobs"
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))},
            "SLURM_CONF": str(folder / "slurm.conf"),
            "RDM_JOBS": str(self.jobs),
            "RDM_PLACE": "host",
        }

    def up(self) -> None:
        for name in ("jobs", "state", *(f"spool/{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "program.py").write_text(PROGRAM)
        for number in range(4):
            (self.folder / f"nvidia{number}").touch()
        ports = network.take_free_ports("127.0.0.1", 4, os.getpid())
        host = socket.gethostname().partition(".")[0]
        (self.folder / "slurm.conf").write_text(
            (CONFIG + self.more_configuration).format(
                folder=self.folder, host=host, ports=ports, user=getpass.getuser()
            )
        )
        (self.folder / "gres.conf").write_text(GRES.format(folder=self.folder))
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        options = [f"--{option}={self.folder}/munge.{name}" for option, name in files.items()]
        self._start("munged", "--force", "--foreground", *options)
        wait_until("munge listens", (self.folder / "munge.socket").exists)
        self._start("slurmctld", "-D", "-c")
        for node in NODES:
            self.node_up(node)
        wait_until("all nodes are idle", self.idle)

    def node_up(self, node: str) -> None:
        self._nodes[node] = self._start("slurmd", "-D", "-N", node)

    def node_dies(self, node: str) -> None:
        """Kill a node's daemon and all that runs on it, at once."""
        self._nodes[node].kill()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"SLURMD_NODENAME={node}".encode() not in (path / "environ").read_bytes().split(b"\0"):
                    continue
                words = (path / "stat").read_text().rpartition(")")[2].split()
                parent = Path("/proc", words[1])
                if (parent / "comm").read_text().startswith("slurmstepd"):
                    os.kill(int(parent.name), signal.SIGKILL)
                os.kill(int(path.name), signal.SIGKILL)

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        program = shutil.which(command[0])
        assert program is not None
        with (self.folder / "daemons.log").open("ab") as log:
            daemon = subprocess.Popen([program, *command[1:]], env=self.environment, stdout=log, stderr=log)
        self._daemons.append(daemon)
        return daemon

    def down(self) -> None:
        self.slurm("scancel", f"--user={getpass.getuser()}")
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
        for path in self.jobs.glob("*/job.json"):
            processes.end_all(JobDirectory(path.parent).stored().job_id)

    def slurm(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        return done.stdout

    def idle(self) -> bool:
        return self.slurm("sinfo", "-h", "-N", "-p", "hgx,gpu2", "-o", "%T").split() == ["idle"] * len(NODES)

    def ask(self, *words: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "rdm_trainer", "job", *words],
            env=self.environment,
            input=json.dumps(request) if request else None,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.stdout, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def request(self, job: str, *overrides: str, **more: Any) -> dict[str, Any]:
        launcher = {"kind": "slurm", "devices_per_node": 1, "program": [str(self.folder / "program.py")]}
        return {
            "version": 1,
            "name": job,
            "node": "login",
            "nodes": [{"name": "login", "address": "127.0.0.1", "slots": 1}],
            "config": json.dumps({"name": job, "launcher": launcher}),
            "overrides": list(overrides),
            **more,
        }

    def submit(self, job: str, *overrides: str, **more: Any) -> None:
        request = self.request(job, *overrides, **more)
        checked = self.ask("check", request=request)
        assert checked["problems"] == []
        assert self.ask("start", request={**request, "offer": checked["offer"]})["started"]

    def state(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("state", job)["job"]
        return found

    def reaches(self, job: str, *states: str) -> dict[str, Any]:
        return wait_until(
            f"{job} is {' or '.join(states)}", lambda: self.state(job), lambda one: one["state"] in states
        )

    def begins(self, job: str, *lines: str) -> None:
        """Wait until all processes have begun, as the logs of all nodes say."""

        def parts() -> list[str]:
            return sorted(self.ask("logs", job)["parts"].values())

        wait_until(f"{job} has begun", parts, lambda found: found == [f"{line}\n" for line in lines])

    def begins_again(self, job: str, restarts: int, node: str) -> None:
        """Wait until a job of one node runs after so many restarts, on a node."""
        wait_until(
            f"{job} has begun again on {node}",
            lambda: self.state(job),
            lambda one: (one["restarts"], one["state"], one["master"]) == (restarts, "running", node),
        )

    def number(self, job: str) -> str:
        return str(json.loads((self.jobs / job / "slurm.json").read_text())["job"])

    def let_end(self, job: str) -> None:
        (self.jobs / job / "end").touch()

    def kill_agent(self, job: str, node: str) -> None:
        """Kill a node's agent as the kernel does when memory is out."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes().decode().split("\0")
                environ = (path / "environ").read_bytes()
            except OSError:
                continue
            its = "step" in words and str(self.jobs / job) in words and Path(words[0]).name != "srun"
            if its and f"SLURMD_NODENAME={node}".encode() in environ.split(b"\0"):
                os.kill(int(path.name), signal.SIGKILL)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    missing = [name for name in (*DAEMONS, "sbatch", "ch-run", "sqfstar") if shutil.which(name) is None]
    assert not missing, f"{', '.join(missing)} are not here: make packages installs them"
    made = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        made.up()
        yield made
    finally:
        made.down()


def test_a_heterogeneous_job_is_one_job_with_one_order_of_ranks(slurm: Slurm) -> None:
    slurm.submit("het", "launcher.slurm.nodes={hgx: 1, gpu2: 2}")
    slurm.begins("het", "rank 0 of 3 on t1", "rank 1 of 3 on t2", "rank 2 of 3 on t3")
    state = slurm.reaches("het", "running")
    assert (state["master"], state["launcher"]) == ("t1", "slurm")
    slurm.let_end("het")
    assert slurm.reaches("het", "finished", "failed")["nodes"] == dict.fromkeys(NODES, "done")
    followed = slurm.ask("logs", "het", "--offset", "t1=0,t3=5")
    assert followed["parts"]["t3"] == "2 of 3 on t3\n"


def test_a_job_for_gpus_asks_slurm_for_one_for_each_process(slurm: Slurm) -> None:
    slurm.submit("gpus", "launcher.devices_per_node=2", accelerator="cuda")
    asked = slurm.slurm("squeue", "--states=all", "-h", "-j", slurm.number("gpus"), "-o", "%b")
    assert asked.strip().endswith("gpu:2")
    assert slurm.ask("stop", "gpus", "--now")["job"]["state"] == "stopped"


def test_slurm_itself_starts_the_ranks(slurm: Slurm) -> None:
    slurm.submit(
        "ranks",
        "launcher.slurm.nodes={hgx: 1, gpu2: 2}",
        "launcher.slurm.step=ranks",
        "launcher.slurm.gres={hgx: gpu:2, gpu2: gpu:1}",
        "launcher.devices_per_node=null",
    )
    wait_until(
        "all ranks have begun",
        lambda: {
            node: sorted(text.splitlines()) for node, text in slurm.ask("logs", "ranks")["parts"].items()
        },
        lambda found: (
            found
            == {
                "t1": ["rank 0 of 4 on t1", "rank 1 of 4 on t1"],
                "t2": ["rank 2 of 4 on t2"],
                "t3": ["rank 3 of 4 on t3"],
            }
        ),
    )
    slurm.let_end("ranks")
    assert slurm.reaches("ranks", "finished", "failed")["state"] == "finished"


def test_one_waits_for_the_other_and_says_why_until_it_is_stopped_or_cancelled(slurm: Slurm) -> None:
    slurm.submit("first", "launcher.nodes=2", WHOLE)
    slurm.begins("first", "rank 0 of 2 on t2", "rank 1 of 2 on t3")
    slurm.submit("second", "launcher.nodes=2", WHOLE)
    slurm.submit("third", "launcher.nodes=2", WHOLE)
    told = wait_until(
        "the second says why", lambda: slurm.state("second"), lambda one: "(Resources)" in one["reason"]
    )
    assert told["state"] == "queued"
    assert (
        "It waits in partition gpu2, 1st in the queue: the nodes that it needs are in use" in told["reason"]
    )
    states = {one["job"]: one["state"] for one in slurm.ask("list")["jobs"]}
    assert (states["first"], states["second"], states["third"]) == ("running", "queued", "queued")
    slurm.slurm("scancel", slurm.number("second"))
    other = slurm.reaches("second", "stopped")
    assert "not by rdm-provision stop" in other["reason"]
    ours = slurm.ask("stop", "third")
    assert (ours["stopped"], ours["job"]["state"], ours["job"]["reason"]) == (
        True,
        "stopped",
        "It was cancelled, as asked.",
    )
    saved = slurm.ask("stop", "first", "--timeout", "200")["job"]
    assert (saved["state"], saved["reason"]) == ("stopped", "It saved and ended, as asked.")
    slurm.submit("first", config="", resume=True)
    slurm.reaches("first", "running")
    slurm.slurm("scancel", slurm.number("first"))
    assert "not by rdm-provision stop" in slurm.reaches("first", "stopped")["reason"]
    wait_until("all nodes are idle", slurm.idle)


def test_what_can_never_run_is_refused_before_it_is_submitted(slurm: Slurm) -> None:
    def said(*overrides: str) -> list[str]:
        found: list[str] = slurm.ask("check", request=slurm.request("never", *overrides))["problems"]
        return found

    assert said("launcher.slurm.partition=gpu") == ["Slurm has no partition gpu; did you mean gpu2?"]
    assert "partition gpu2 has 2: Slurm would let it wait for ever" in said("launcher.nodes=5")[0]
    assert said("launcher.slurm.gres=gpu:hgx:4") == [
        "No node of partition gpu2 has gpu:hgx; they have gpu:a10:4."
    ]
    assert said("launcher.slurm.nodelist=t9")[0].startswith("Slurm refuses the job: ")
    assert not (slurm.jobs / "never").exists()


def test_agents_run_in_an_image_that_is_made_once_of_a_docker_archive(slurm: Slurm, image: Image) -> None:
    slurm.submit("in-image", "launcher.nodes=2", *image.options)
    slurm.begins("in-image", "rank 0 of 2 on t2 image", "rank 1 of 2 on t3 image")
    (made,) = (slurm.jobs / ".images").glob("*.sqsh")
    before = made.stat()
    assert "removed" not in subprocess.run(["unsquashfs", "-l", made], capture_output=True, text=True).stdout
    slurm.let_end("in-image")
    assert slurm.reaches("in-image", "finished", "failed")["state"] == "finished"
    slurm.submit("wrong", *image.options, "launcher.slurm.image_program=/opt/trainer")
    told = slurm.reaches("wrong", "failed", "running")
    assert "ch-run failed on t2" in told["reason"]
    assert "/opt/trainer" in told["reason"]
    assert made.stat() == before


@pytest.mark.parametrize("runtime", ["enroot", "pyxis"])
def test_agents_run_through_stand_ins_of_enroot_and_pyxis(
    slurm: Slurm, runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"enroot": "enroot", "pyxis": "srun"}[runtime]
    (tmp_path / name).symlink_to(Path(__file__).parent / f"standin_{runtime}.py")
    monkeypatch.setitem(slurm.environment, "PATH", f"{tmp_path}:{os.environ['PATH']}")
    image = tmp_path / "image.sqsh"
    image.touch()
    program = Path(sys.executable).with_name("rdm-trainer")
    slurm.submit(
        runtime,
        f"launcher.slurm.image={image}",
        f"launcher.slurm.image_program={program}",
        "launcher.slurm.mounts=[/usr]",
    )
    slurm.begins(runtime, "rank 0 of 1 on t2")
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["mounts"] == [f"{slurm.jobs}:{slurm.jobs}", "/usr:/usr"]
    assert (told["name"].startswith("rdm-"), told["image"]) == (True, str(image))
    slurm.let_end(runtime)
    assert slurm.reaches(runtime, "finished", "failed")["state"] == "finished"


def test_an_agent_that_is_killed_costs_a_restart_on_nodes_that_slurm_gives(slurm: Slurm) -> None:
    slurm.submit("again", "launcher.slurm.nodelist=t3", "launcher.max_restarts=1")
    slurm.begins("again", "rank 0 of 1 on t3")
    slurm.kill_agent("again", "t3")
    told = wait_until("it has begun again", lambda: slurm.state("again"), lambda one: one["restarts"] == 1)
    assert "Slurm put it back into the queue" in told["failures"][-1]["reason"]
    slurm.reaches("again", "running")
    slurm.kill_agent("again", "t3")
    assert slurm.reaches("again", "failed", "finished")["state"] == "failed"


def test_what_is_told_of_its_time_limit_saves_and_goes_on_as_often_as_it_may(slurm: Slurm) -> None:
    jobs = {"ends": "t2", "returns": "t3"}
    for restarts, (job, node) in enumerate(jobs.items()):
        slurm.submit(job, f"launcher.max_restarts={restarts}", f"launcher.slurm.nodelist={node}")
    for job, node in jobs.items():
        slurm.begins(job, f"rank 0 of 1 on {node}")
    for job in jobs:
        # What Slurm does by `#SBATCH --signal`, without waiting for minutes.
        slurm.slurm("scancel", "--batch", "--signal=USR1", slurm.number(job))
    told = slurm.reaches("ends", "stopped", "failed")
    assert told["reason"] == "It saved and ended before its time limit, and no restarts are left: resume it."
    again = wait_until("it was put back", lambda: slurm.state("returns"), lambda one: one["restarts"] == 1)
    assert again["state"] != "stopped"
    slurm.reaches("returns", "running")
    slurm.let_end("returns")
    assert slurm.reaches("returns", "finished", "failed")["state"] == "finished"


def test_what_slurm_cannot_say_is_not_taken_for_an_end(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.submit("silent", "launcher.slurm.nodelist=t3")
    slurm.begins("silent", "rank 0 of 1 on t3")
    number = slurm.number("silent")
    slurm.let_end("silent")
    assert slurm.reaches("silent", "finished", "failed")["state"] == "finished"
    # As if its agents had not said so, and Slurm's controller had forgotten it.
    job = slurm.jobs / "silent"
    known = JobDirectory.of_master(job)
    known.write_state(dataclasses.replace(known.read_state(), state="running", ended=None))
    os.utime(job / "state.json", (0, 0))
    (job / "slurm.json").write_text(json.dumps({"job": int(number) + 1000}))
    without = slurm.folder / "without-accounting.conf"
    accounting = "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStoragePort=1\n"
    without.write_text((slurm.folder / "slurm.conf").read_text() + accounting)
    with monkeypatch.context() as during:
        during.setitem(slurm.environment, "SLURM_CONF", str(without))
        told = slurm.state("silent")
    assert told["state"] == "running"
    assert "Slurm's accounting does not answer: Problem talking to the database" in told["reason"]
    told = slurm.state("silent")
    assert (told["state"], "Slurm does not know the job any more" in told["reason"]) == ("failed", True)


@pytest.mark.long
def test_what_takes_the_nodes_away_costs_a_restart(slurm: Slurm) -> None:
    # A time limit that is near from the beginning: Slurm may say so a minute early.
    limit = ("launcher.slurm.partition=hgx", "launcher.slurm.time='2'", "launcher.slurm.signal=60")
    slurm.submit("limited", *limit, "launcher.max_restarts=1")
    slurm.submit("moves", "launcher.max_restarts=2", WHOLE)
    slurm.begins("moves", "rank 0 of 1 on t2")
    slurm.node_dies("t2")
    slurm.begins_again("moves", 1, "t3")
    slurm.node_up("t2")
    wait_until("t2 is back", lambda: slurm.slurm("sinfo", "-h", "-n", "t2", "-o", "%T").split()[0] == "idle")
    # A job of higher priority takes both nodes, and gives them back.
    slurm.slurm("sbatch", "-p", "urgent", "-N2", "--gres=gpu:a10:4", "-o", "/dev/null", "--wrap", "sleep 1")
    slurm.begins_again("moves", 2, "t2")
    slurm.begins_again("limited", 1, "t1")
    for job in ("moves", "limited"):
        slurm.let_end(job)
        assert slurm.reaches(job, "finished", "failed")["state"] == "finished"


TINY = {
    "model": {"layers": 4, "hidden_size": 32, "attention_heads": 4, "seq_length": 16, "vocab_size": 98},
    "optimisation": {
        "micro_batch_size": 2,
        "global_batch_size": 8,
        "train_iterations": 6,
        "precision": "fp32",
        "lr": 1e-2,
    },
    "data": {"mock": True},
    "logging": {"interval": 1},
}


@pytest.mark.long
def test_a_gpt_has_the_same_losses_on_one_node_and_in_an_image_on_nodes_of_two_partitions(
    slurm: Slurm, image: Image
) -> None:
    launcher = {"kind": "slurm", "devices_per_node": 1}
    config = json.dumps({"name": "gpt", **TINY, "launcher": launcher})
    slurm.submit("host", config=config)
    first = slurm.reaches("host", "finished", "failed")
    slurm.submit(
        "uneven",
        *("parallel.pipeline=3", "parallel.partition=0-3-1", "launcher.slurm.nodes={hgx: 1, gpu2: 2}"),
        *image.options,
        config=config,
    )
    second = slurm.reaches("uneven", "finished", "failed")
    assert (first["state"], second["state"]) == ("finished", "finished"), second["failures"]
    assert second["nodes"] == dict.fromkeys(NODES, "done")
    one, other = (dict(told["progress"]["losses"]) for told in (first, second))
    assert sorted(one) == [1, 2, 3, 4, 5, 6]
    assert other == pytest.approx(one, abs=1e-4)
