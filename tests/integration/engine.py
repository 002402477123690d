"""A private Docker Engine for tests: it shares nothing with the machine's and leaves nothing behind."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerProblem
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import remove_container

from tests.labs import lab_name
from trainer.tests.waiting import wait_until

PREFIX = f"{lab_name('rdm-engine')}-"
"""Of the names of engines' directories: a checkout's own."""
START_TIMEOUT = 180.0
STOP_TIMEOUT = 60.0


def net(number: int) -> str:
    """Return the first three bytes of one of this run's 16 /24 subnets: all engines share this machine."""
    first = os.getpid() % 2048 * 16 + number
    return f"10.{128 + first // 256}.{first % 256}"


@dataclass
class Engine:
    """A private dockerd.

    Attributes:
        root: a short directory (a unix socket's path has at most 107 bytes) with everything the engine has.
        options: further options of dockerd.
        prefix: command that becomes dockerd, for one that is not the machine's.
    """

    root: Path
    options: list[str] = field(default_factory=list)
    prefix: list[str] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        """The path of the engine's socket."""
        return str(self.root / "docker.sock")

    @property
    def bridge(self) -> str:
        """The name of the link that is this engine's default bridge."""
        return f"rdm-{self.root.name[-8:]}"

    @property
    def namespace(self) -> str:
        """The engine's namespace in containerd, without leading, trailing or repeated underscores."""
        return self.root.name.replace("_", "x")

    @property
    def api(self) -> DockerAPI:
        """A client of this engine."""
        return DockerAPI(self.socket)

    @property
    def environment(self) -> dict[str, str]:
        """The environment that makes the docker command and the Docker SDK talk to this engine."""
        return {**os.environ, "DOCKER_HOST": f"unix://{self.socket}"}

    @property
    def pid(self) -> int:
        """The process id of dockerd."""
        assert self._process is not None, "the engine is not running"
        return self._process.pid

    def start(self) -> None:
        """Start dockerd and wait until it answers."""
        log = self.root / "dockerd.log"
        if not Path("/sys/class/net", self.bridge).exists():
            subprocess.run(["ip", "link", "add", self.bridge, "type", "bridge"], check=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *self.prefix,
                    "dockerd",
                    f"--host=unix://{self.socket}",
                    f"--data-root={self.root / 'data'}",
                    f"--exec-root={self.root / 'exec'}",
                    f"--pidfile={self.root / 'docker.pid'}",
                    # Used only if the system's containerd runs, which engines then share.
                    f"--containerd-namespace={self.namespace}",
                    f"--containerd-plugins-namespace={self.namespace}-plugins",
                    # Leave the machine's firewall, forwarding and links alone.
                    f"--bridge={self.bridge}",  # "none" would remove docker0, which the machine's engine uses
                    "--iptables=false",
                    "--ip6tables=false",
                    "--ip-forward=false",
                    *self.options,
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(
                "the tests' own dockerd answers", self._answers, timeout=START_TIMEOUT, why=log.read_text
            )
        except AssertionError:
            self.stop()
            raise

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            return False
        try:
            self.api.version()
        except DockerProblem:
            return False
        return True

    def stop(self) -> None:
        """Stop dockerd gracefully; its images and stopped containers stay for the next start."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """Kill dockerd, and its containerd with it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None
        # If nothing reaps orphans, the next dockerd would take the dead containerd for a running one.
        (self.root / "exec/containerd/containerd.pid").unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove every container and network of an engine that runs."""
        if self._answers():
            for container in self.api.get("/containers/json", all=True):
                remove_container(self.api, container["Id"], volumes=True)
            self.api.post("/networks/prune")

    def remove(self) -> None:
        """Remove every container and network, stop the engine and delete its data."""
        self.clear()
        self.stop()
        if Path("/sys/class/net", self.bridge).exists():
            subprocess.run(["ip", "link", "delete", self.bridge], check=True)
        for mount in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            where = mount.split()[1]
            if where.startswith(f"{self.root}/"):
                subprocess.run(["umount", "--lazy", where], check=True)
        shutil.rmtree(self.root)

    def processes(self) -> list[int]:
        """Return the processes whose command lines name the engine's directory, such as dockerd."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if f"{self.root}/".encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def has_ended(self) -> bool:
        """Whether there is none of these processes."""
        return not self.processes()


def _lock(directory: Path, more: int = 0) -> int:
    """Lock a directory until the returned descriptor is closed, at the latest when this process ends."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | more)
    except OSError:
        os.close(handle)
        raise
    return handle


def _is_own(path: Path) -> bool:
    """Whether this user has made a directory: anybody can make one in /tmp, with links to other things."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def remove_left() -> None:
    """Remove the engines of this checkout whose directories are unlocked: their runs were killed."""
    # Each run has a directory there; Path.glob would fail where one ends meanwhile.
    for root in map(Path, glob.glob(f"/tmp/rdm-t-*/{PREFIX}*")):  # noqa: PTH207
        try:
            if not (_is_own(root.parent) and _is_own(root)):
                continue
            handle = _lock(root, fcntl.LOCK_NB)
        except (BlockingIOError, FileNotFoundError):
            continue
        engine = Engine(root)
        with suppress(DockerProblem):
            engine.clear()
        for signal in (SIGTERM, SIGKILL):
            for process in engine.processes():
                with suppress(ProcessLookupError):
                    os.kill(process, signal)
            with suppress(AssertionError):
                wait_until("it has ended", engine.has_ended, timeout=STOP_TIMEOUT)
        engine.remove()
        os.close(handle)


@contextmanager
def private_engine(*options: str, prefix: list[str] | None = None) -> Iterator[Engine]:
    """Run a private dockerd for the length of a with block.

    Args:
        options: further options of dockerd.
        prefix: command that becomes dockerd, for one that is not the machine's.
    """
    if os.geteuid() != 0:
        pytest.fail("the integration tests start a Docker Engine of their own, which only root can do")
    if shutil.which("dockerd") is None:
        pytest.fail("the integration tests need the dockerd program: apt-get install docker.io")
    checkout = _lock(Path(__file__).parent)  # another run takes a directory without a lock for a killed run's
    try:
        remove_left()
        engine = Engine(Path(tempfile.mkdtemp(prefix=PREFIX)), list(options), prefix or [])
        handle = _lock(engine.root)
    finally:
        os.close(checkout)
    try:
        engine.start()
        yield engine
    finally:
        engine.remove()
        os.close(handle)
