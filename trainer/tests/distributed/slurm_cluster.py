# SPDX-License-Identifier: GPL-3.0-or-later
"""A real Slurm cluster of three nodes on this machine, and an image that its jobs run in.

Slurm lets several node daemons run on one host for such tests. Their GPUs are plain files. The processes run
a small program, through ``launcher.program``, unless a test says otherwise.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

import rdm_trainer
from rdm_job import network, processes
from rdm_job.directory import JobDirectory
from tests.distributed.processes import run_job_verb
from tests.distributed.slurm_root import inside, root
from tests.waiting import DEADLINE_S, wait_until

__all__ = ["EACH_RELEASE", "NODES", "PROGRAM", "RANKS", "RELEASES", "Image", "Slurm", "running"]

RELEASES = {"22.05": "", "24.11": "trixie", "26.05+": "forky"}
"""Releases of Slurm ("+": and later), with the release of Debian that has it; empty for this machine's."""
EACH_RELEASE = [pytest.param(one, marks=[pytest.mark.long] if RELEASES[one] else []) for one in RELEASES]

RANKS = "launcher.slurm.step=ranks"
"""Slurm starts the ranks, for tests that are not about launchers: it is faster than torch's launcher."""

NODES = ("t1", "t2", "t3")
DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=15
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
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
SlurmdTimeout=30
MessageTimeout=30
BatchStartTimeout=60
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
# Who reads its line may stop it.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
# In one piece: ranks of a step share a file, and an unbuffered print writes each word.
sys.stdout.write(" ".join(["rank", rank, "of", world, "on", node, *where]) + "\\n")
sys.stdout.flush()
end = pathlib.Path(os.environ["RDM_JOB_DIR"]) / "end"
while not end.exists():
    time.sleep(0.05)
"""


class Image:
    """A Docker archive of two layers; its programs are this machine's own, through mounts.

    Args:
        folder: Where it is made.
        jobs: The directory of the jobs, for an image that is run as it is, with a directory for each mount.
    """

    def __init__(self, folder: Path, jobs: Path | None = None) -> None:
        self.archive = folder / "trainer.tar"
        self.mounts = sorted(
            {"/usr", sys.base_prefix, sys.prefix, str(Path(rdm_trainer.__file__).parents[1])}
        )
        program = f'#!/bin/sh\nexec {sys.executable} -m rdm_trainer "$@"\n'
        lower = self._layer(
            *((name, None) for name in ("dev", "etc", "home", "proc", "run", "sys", "tmp", "var/tmp")),
            *((f"etc/{name}", "") for name in ("passwd", "group", "hosts", "resolv.conf", "environment")),
            *((path.lstrip("/"), None) for path in ((*self.mounts, str(jobs)) if jobs else ())),
            *((name, f"usr/{name}") for name in ("bin", "lib", "lib64", "sbin")),
            ("opt/rdm-trainer", program),
            ("removed", ""),
        )
        upper = self._layer(("only-in-the-image", ""), (".wh.removed", ""))
        digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in (lower, upper)]
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": ["IN=image", "PATH=/usr/bin:/bin"]},
                "rootfs": {"type": "layers", "diff_ids": digests},
                "history": [{"created_by": "these tests"} for _ in digests],
            }
        ).encode()
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
        """Return a layer of directories (None), links (`usr/…`) and files (their content)."""
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
        """Return the options that make a job run in the image."""
        return [
            f"launcher.slurm.image={self.archive}",
            f"launcher.slurm.mounts={json.dumps(self.mounts)}",
            "launcher.slurm.image_program=/opt/rdm-trainer",
            "launcher.slurm.container=charliecloud",
        ]


class Slurm:
    """A cluster of three nodes, and requests to its login host.

    Args:
        folder: Where all its files are.
        release: The distribution's release that has this Slurm, such as ``trixie``; empty for this machine's.
    """

    more_configuration = ""
    """Further lines of slurm.conf."""

    def __init__(self, folder: Path, release: str = "") -> None:
        self.folder = folder
        self.within = inside(root(release)) if release else ()
        self.jobs = folder / "jobs"
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        others = ("SLURM", "SBATCH")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(others)},
            "SLURM_CONF": str(folder / "slurm.conf"),
            "RDM_JOBS": str(self.jobs),
            "RDM_EXECUTION_ENVIRONMENT": "host",
            # As for ordinary users: apptainer would give its processes rights that root here may lack.
            "APPTAINER_USERNS": "1",
        }

    def up(self) -> None:
        for name in ("jobs", "state", *(f"{kind}/{node}" for kind in ("spool", "tmp") for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "program.py").write_text(PROGRAM)
        for number in range(4):
            (self.folder / f"nvidia{number}").touch()
        ports = self.ports(5, "Slurm")
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
        self._start("munged", "--force", "--foreground", *options, within=())
        wait_until("munge listens", (self.folder / "munge.socket").exists)
        self.accounting_up(ports[4])
        self._start("slurmctld", "-D", "-c")
        for node in NODES:
            self.node_up(node)
        wait_until("all nodes are idle", self.idle)

    def accounting_up(self, port: int) -> None:
        """Start what slurmctld's accounting needs; here it has none.

        Args:
            port: A free port, for slurmdbd.
        """

    @staticmethod
    def ports(count: int, what: str) -> list[int]:
        """Return consecutive free ports. Test processes with adjacent ids start their searches far apart."""
        found = network.take_free_ports("127.0.0.1", count, zlib.crc32(f"{os.getpid()} {what}".encode()))
        assert found, f"no {count} ports are free for {what}"
        return found

    def node_up(self, node: str) -> None:
        self._nodes[node] = self._start("slurmd", "-D", "-N", node)

    def node_dies(self, node: str) -> None:
        """Kill a node's daemon and everything that runs on it, at once."""
        self._nodes[node].kill()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environ = (path / "environ").read_bytes()
                # Another run's cluster may have a node of this name.
                if f"={self.folder}/".encode() not in environ:
                    continue
                if f"SLURMD_NODENAME={node}".encode() not in environ.split(b"\0"):
                    continue
                words = (path / "stat").read_text().rpartition(")")[2].split()
                parent = Path("/proc", words[1])
                if (parent / "comm").read_text().startswith("slurmstepd"):
                    os.kill(int(parent.name), signal.SIGKILL)
                os.kill(int(path.name), signal.SIGKILL)

    def _start(self, *command: str, within: Sequence[str] | None = None) -> subprocess.Popen[bytes]:
        within = self.within if within is None else within
        with (self.folder / "daemons.log").open("ab") as log:
            daemon = subprocess.Popen([*within, *command], env=self.environment, stdout=log, stderr=log)
        self._daemons.append(daemon)
        return daemon

    def down(self) -> None:
        self.slurm("scancel", f"--user={getpass.getuser()}")
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=DEADLINE_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
        for path in self.jobs.glob("*/job.json"):
            processes.end_all(JobDirectory(path.parent).stored().job_id)

    def slurm(self, *command: str) -> str:
        done = subprocess.run(
            [*self.within, *command],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.stdout

    def idle(self) -> bool:
        return self.slurm("sinfo", "-h", "-N", "-p", "hgx,gpu2", "-o", "%T").split() == ["idle"] * len(NODES)

    def run_verb(self, *words: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        answer, _ = run_job_verb(
            *words, environment=self.environment, request=request, within=self.within or None
        )
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
        checked = self.run_verb("check", request=request)
        assert checked["problems"] == [], checked["problems"]
        assert self.run_verb("start", request={**request, "offer": checked["offer"]})["started"]

    def state(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.run_verb("state", job)["job"]
        return found

    def wait_for_state(self, job: str, *states: str) -> dict[str, Any]:
        return wait_until(
            f"{job} is {' or '.join(states)}", lambda: self.state(job), lambda one: one["state"] in states
        )

    def wait_for_ranks(self, job: str, *lines: str) -> None:
        """Wait until all processes have begun, according to all nodes' logs and to the agents."""

        def parts() -> list[str]:
            return sorted(self.run_verb("logs", job)["parts"].values())

        wait_until(f"{job} has begun", parts, lambda found: found == [f"{line}\n" for line in lines])
        self.wait_for_state(job, "running")

    def wait_for_restart(self, job: str, restarts: int, node: str) -> None:
        """Wait until a job of one node runs on a given node after this many restarts."""
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
        """Kill a node's agent as the kernel does when memory runs out."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes().decode().split("\0")
                environ = (path / "environ").read_bytes()
            except OSError:
                continue
            its = "step" in words and str(self.jobs / job) in words and Path(words[0]).name != "srun"
            if its and f"SLURMD_NODENAME={node}".encode() in environ.split(b"\0"):
                os.kill(int(path.name), signal.SIGKILL)


_Cluster = TypeVar("_Cluster", bound=Slurm)


@contextlib.contextmanager
def running(cluster: _Cluster, *programs: str) -> Iterator[_Cluster]:
    """Run a cluster, if the programs that it needs besides Slurm's daemons are installed."""
    missing = [name for name in (*DAEMONS, *programs) if shutil.which(name) is None]
    assert not missing, f"{', '.join(missing)} are not here: make packages installs them"
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
