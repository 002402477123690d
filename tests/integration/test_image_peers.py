"""The role images passes an archive from node to node through real ssh, while something fails.

The nodes are this machine under three names: they share its engine and a cache, and differ in processes and
ports.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import image_store

from tests.ansible_playbook import TIMEOUT_S
from tests.image_archives import MadeImage, saved, tar
from tests.integration.engine import Engine, private_engine
from tests.integration.engines import ENGINES, engine_directory, inside
from tests.integration.ssh_nodes import configure_ssh, own_disk, start_playbook
from trainer.tests.waiting import Begun, Test, begin, wait_until

IMAGE = "rdm-test/passed-on:1"
SIZE = 24_000_000
EACH_ONCE = 1.0
"""The share of the archive that a source has sent, if it has sent each piece once. Where nodes need fewer, it
sends less, also on a busy machine that stands still for seconds, so that some pieces are sent twice."""
MARK = "RDM_TEST_IMAGE_PEERS"
"""Variable of all processes of a run, on the controller and on the nodes."""
LATE = """\
#!{python}
# Until another node has all of the archive, no call reaches this one while a transfer is on.
import glob, os, sys, time
peers = "{folder}/cache/peers/"
while glob.glob(peers + "*.lock") and not any(
    os.stat(path).st_blocks * 512 >= {size} for path in glob.glob(peers + "*.tar")
):
    time.sleep(0.05)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@dataclass
class Nodes:
    """Three nodes, and runs of the role on them.

    Attributes:
        folder: with all files of the controller and the nodes.
        engine: that all nodes use.
        archive: its name.
        remote_src: whether the nodes have it, and not the controller.
    """

    folder: Path
    engine: Engine
    archive: str = "image.tar"
    remote_src: bool = False

    def start(self, megabits: int, **of_n3: str) -> subprocess.Popen[str]:
        """Start a run in which each node sends so many megabits per second at most."""
        variables = " ".join(f"{name}={value}" for name, value in of_n3.items())
        (self.folder / "inventory").write_text(f"[master]\nn1\n[workers]\nn2\nn3 {variables}\n")
        mark = {MARK: str(self.folder)}
        there = {"DOCKER_HOST": f"unix://{self.engine.socket}", **mark}
        play = {"hosts": "all", "gather_facts": False, "environment": there}
        roles = {"roles": ["rdm.provision.images"]}
        (self.folder / "play.yml").write_text(yaml.safe_dump([{**play, **roles}]))
        image = {"name": IMAGE, "source": "archive", "remote_src": self.remote_src}
        given = {
            "images_list": [{**image, "path": str(self.folder / self.archive)}],
            "images_cache_dir": str(self.folder / "cache"),
            "images_distribution": "peers",
            "images_bandwidth": megabits,
        }
        return start_playbook(self.folder, self.folder / "play.yml", given, **mark)

    def provision(self, **of_n3: str) -> float:
        """Run the role to its end; return what the source has sent, as a share of the archive."""
        found = json.loads(self.end(self.start(0, **of_n3)))
        tasks = {task["task"]["name"]: task["hosts"] for task in found["plays"][0]["tasks"]}
        brought = tasks["rdm.provision.images : Transfer archives from node to node"]["n1"]
        self.require_loaded()
        return float(brought["sent"][str(self.folder / self.archive)]) / SIZE

    def end(self, run: subprocess.Popen[str], expect: int = 0) -> str:
        """Wait for the end of a run, and return its report. One that hangs is killed, and so fails.

        What pytest shows of a failure has the messages: the whole report is too long for that.
        """
        try:
            output, errors = run.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            output, errors = run.communicate()
        assert run.returncode == expect, output + errors
        print(*re.findall(r'"msg": .*', output), errors, sep="\n")
        return output[output.index("{") :]

    def kill(self) -> None:
        """Kill the processes of all runs."""
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def wait_half(self) -> None:
        """Wait until two nodes have half of the archive."""

        def half() -> bool:
            arrived = [file.stat().st_blocks * 512 for file in self.peers.glob("*.tar")]
            return len(arrived) == 2 and min(arrived) >= SIZE / 2

        wait_until("half of the archive is on both", half, why=self.processes)

    @property
    def peers(self) -> Path:
        return self.folder / "cache" / "peers"

    @property
    def small_disk(self) -> Path:
        """The ssh of a node with a disk of its own."""
        return self.folder / "ssh"

    def require_loaded(self) -> None:
        """Fail unless the image is loaded, and nothing of a run is left where all nodes see it."""
        assert self.loaded()
        assert not self.processes()
        assert not list(self.peers.iterdir())

    def source(self) -> int:
        """Return the process that serves the archive, the only one that does not fetch."""
        (lock,) = (file for file in self.peers.glob("*.lock") if not file.with_suffix(".tar").exists())
        return int(lock.read_text().split()[0])

    def processes(self) -> dict[int, str]:
        """Return the processes of all runs, on the controller and on the nodes."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.folder}\0".encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        return found

    def left(self) -> set[str]:
        """Return the suffixes of what is left in the cache."""
        return {file.suffix for file in self.peers.iterdir()}

    def loaded(self) -> bool:
        """Return whether the engine has the image."""
        return any(IMAGE in (image["RepoTags"] or []) for image in self.engine.api.get("/images/json"))


@pytest.fixture
def disk(nodes: Nodes) -> Iterator[Callable[[int], Path]]:
    """A function that gives n3 a disk of so many bytes for the cache, and returns its path."""
    with contextlib.ExitStack() as disks:

        def give(size: int) -> Path:
            cache = nodes.folder / "cache"
            cache.mkdir()
            mount = f"-t tmpfs -o mode=700,size={size} rdm-test {cache}"
            return Path(f"/proc/{disks.enter_context(own_disk(nodes.small_disk, mount))}/root{cache}")

        yield give


@contextlib.contextmanager
def ready(engine: Engine, folder: Path, layers: list[bytes]) -> Iterator[Nodes]:
    """Provide the nodes and an archive of an image."""
    (folder / "image.tar").write_bytes(saved(MadeImage(layers, [IMAGE])))
    configure_ssh(folder)
    nodes = Nodes(folder, engine)
    try:
        yield nodes
    finally:
        nodes.kill()
        if nodes.loaded():
            engine.api.delete(f"/images/{IMAGE}")


def whole(engine: Engine, folder: Path) -> contextlib.AbstractContextManager[Nodes]:
    """Provide the nodes and an archive that each needs all of."""
    return ready(engine, folder, [tar({"data": os.urandom(SIZE - 10_000)})])


@pytest.fixture
def nodes(engine: Engine, tmp_path: Path) -> Iterator[Nodes]:
    with whole(engine, tmp_path) as nodes:
        yield nodes


def run_is_killed_at_half(nodes: Nodes) -> Iterator[None]:
    run = nodes.start(20)
    nodes.wait_half()
    run.kill()
    run.communicate(timeout=TIMEOUT_S)
    assert len(nodes.processes()) >= 3, "those of the nodes go on"
    yield
    wait_until("no process is left", nodes.processes, lambda found: not found)
    assert nodes.left() <= {".tar", ".have", ".lock", ".result"}
    assert not nodes.loaded()
    assert nodes.provision() < EACH_ONCE


TIMEOUT_TESTS = (run_is_killed_at_half,)


@pytest.fixture(scope="module", autouse=True)
def begun(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """The tests of timeouts, which begin before all others."""
    with contextlib.ExitStack() as stack:
        yield begin(
            TIMEOUT_TESTS, lambda: stack.enter_context(whole(engine, tmp_path_factory.mktemp("limit")))
        )


def test_the_source_dies_at_half(nodes: Nodes) -> None:
    run = nodes.start(20)
    nodes.wait_half()
    os.kill(nodes.source(), signal.SIGKILL)
    output = nodes.end(run, expect=2)
    for name in ("n2", "n3"):
        assert f"image.tar did not reach {name}, which lost its source n1: the process that serves" in output
    assert not nodes.processes()
    assert nodes.left() == {".tar", ".have"}
    nodes.engine.api.delete(f"/images/{IMAGE}")  # n1 had it, and has loaded it
    assert nodes.provision() < EACH_ONCE


def test_a_node_that_joins_late_gets_it_from_another(nodes: Nodes) -> None:
    late = nodes.folder / "late"
    late.write_text(LATE.format(python=sys.executable, folder=nodes.folder, size=SIZE))
    late.chmod(0o755)
    assert nodes.provision(ansible_python_interpreter=str(late)) < 2 * EACH_ONCE


def test_layers_that_containerd_has_are_not_sent(tmp_path: Path) -> None:
    layers = [tar({name: os.urandom(SIZE // 4 - 5_000)}) for name in "abcd"]
    older = saved(MadeImage([*layers[:3], tar({"d": b"older"})], ["rdm-test/older:1"]))
    newer = inside(engine_directory(ENGINES["28.5+"]))
    with (
        private_engine("--feature=containerd-snapshotter=true", prefix=newer) as engine,
        ready(engine, tmp_path, layers) as nodes,
    ):
        tar_type = {"Content-Type": "application/x-tar"}
        list(engine.api.post_stream("/images/load", [older], tar_type, quiet=True))
        assert image_store(engine.api.get("/info")) == "containerd"
        sent = nodes.provision()
        print(f"the source sent {sent:.2f} of the archive")  # of docs/images.md
        assert sent < 0.8


def test_layers_of_a_compressed_archive_that_nodes_have_are_not_sent(engine: Engine, tmp_path: Path) -> None:
    sizes = {"base": SIZE * 7 // 16, "top": SIZE // 16}
    layers = [tar({name: os.urandom(size) + bytes(size)}) for name, size in sizes.items()]
    older = "rdm-test/older-layers:1"
    tar_type = {"Content-Type": "application/x-tar"}
    with ready(engine, tmp_path, layers) as nodes:
        list(
            engine.api.post_stream(
                "/images/load", [saved(MadeImage(layers[:1], [older]))], tar_type, quiet=True
            )
        )
        nodes.archive, nodes.remote_src = "image.tar.gz", True
        archive = tmp_path / nodes.archive
        archive.write_bytes(gzip.compress((tmp_path / "image.tar").read_bytes(), 1))
        try:
            sent = nodes.provision() * SIZE / archive.stat().st_size
        finally:
            engine.api.delete(f"/images/{older}")
        print(f"the source sent {sent:.2f} of the archive")  # of docs/images.md
        assert sent < 0.8


def test_node_with_too_small_a_disk_does_not_start(nodes: Nodes, disk: Callable[[int], Path]) -> None:
    small = disk(SIZE // 2)
    output = nodes.end(nodes.start(0, ansible_ssh_executable=str(nodes.small_disk)), expect=2)
    assert f"image.tar did not reach n3, which stopped at 0%: no space left for {nodes.peers}/" in output
    nodes.require_loaded()
    assert sum(file.stat().st_blocks * 512 for file in small.glob("peers/*")) < SIZE / 100


def test_the_disk_of_a_node_is_full_at_half(nodes: Nodes, disk: Callable[[int], Path]) -> None:
    small = disk(SIZE * 5 // 4)
    run = nodes.start(20, ansible_ssh_executable=str(nodes.small_disk))

    def half() -> bool:
        return sum(file.stat().st_blocks * 512 for file in small.glob("peers/*.tar")) >= SIZE / 2

    wait_until("half of the archive is there", half, why=nodes.processes)
    with pytest.raises(OSError, match="No space left"):
        fill(small / "other")
    output = nodes.end(run, expect=2)
    stopped = r"image.tar did not reach n3, which stopped at \d\d%: no space left for "
    assert re.search(stopped + f"{nodes.peers}/", output)
    nodes.require_loaded()
    (small / "other").unlink()
    nodes.engine.api.delete(f"/images/{IMAGE}")
    nodes.provision(ansible_ssh_executable=str(nodes.small_disk))
    assert not list(small.glob("peers/*"))


def fill(path: Path) -> None:
    """Write a file until its disk is full, which is an OSError."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))


def test_a_later_run_takes_over_from_an_earlier_one(nodes: Nodes) -> None:
    earlier = nodes.start(1)
    wait_until("all nodes take part", lambda: len([*nodes.peers.glob("*.lock")]) == 3, why=nodes.processes)
    nodes.end(nodes.start(0))
    output = nodes.end(earlier, expect=2)
    for name in ("n2", "n3"):
        assert f"image.tar did not reach {name}, which lost its source n1" in output
    nodes.require_loaded()


@pytest.mark.parametrize("test", TIMEOUT_TESTS, ids=lambda test: test.__name__)
def test_timeouts(begun: Begun, test: Test) -> None:
    next(begun[test], None)
