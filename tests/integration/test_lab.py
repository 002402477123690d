"""Labs on this machine's engine: created, grown, broken, repaired, interrupted, and removed completely."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.rdm_lab import engine as lab_engine
from ansible_collections.rdm.provision.rdm_lab import images
from ansible_collections.rdm.provision.rdm_lab import recipe as lab_recipe
from ansible_collections.rdm.provision.rdm_lab.client import connect, image_id
from ansible_collections.rdm.provision.rdm_lab.files import Files
from ansible_collections.rdm.provision.rdm_lab.interrupted_start import marked_processes
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem

from rdm_provision.api.lab import Lab as KnownLab
from tests.integration.engine import Engine
from tests.integration.images import busybox_rootfs, import_image
from tests.labs import lab_name, left_over
from tests.printed_hints import follow
from trainer.tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
NAME = lab_name("lab")
PROGRAM = (sys.executable, "-c", "from rdm_provision.cli import main; main()")


@dataclass(frozen=True)
class Lab:
    """A lab as its user sees it."""

    directory: Path
    name: str
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> Path:
        return self.directory / "inventory" / self.name

    def argv(self, verb: str, *argv: str) -> list[str]:
        return [*PROGRAM, "lab", verb, "--name", self.name, *argv]

    @property
    def environment(self) -> dict[str, str]:
        keep = {
            name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "RDM_"))
        }
        return keep | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"} | self.variables

    def run(self, verb: str, *argv: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        return self.program(*self.argv(verb, *argv)[len(PROGRAM) :], expect=expect)

    def program(self, *argv: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*PROGRAM, *argv],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        assert done.returncode == expect, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, verb: str, *argv: str, expect: int = 0) -> Any:
        return json.loads(self.run(verb, *argv, "--json", expect=expect).stdout)

    def nodes(self) -> dict[str, tuple[str, str, str]]:
        assert not self.variables, "this process has others"
        found = KnownLab(self.name, self.directory).status()
        return {node.name: (node.state, node.cable, node.engine) for node in found}

    def wait_ready(self, nodes: int) -> None:
        """Wait until exactly so many nodes exist and are ready.

        One check gives an engine and an sshd 15 seconds to answer, which may be too short on a busy
        machine.
        """
        ready = [READY] * nodes
        wait_until(f"{nodes} nodes are ready", self.nodes, lambda found: list(found.values()) == ready)

    def ssh(
        self, node: str, *argv: str, user: str = "rdm", timeout: int = 120
    ) -> subprocess.CompletedProcess[str]:
        config = self.files / ".rdm/lab/ssh_config"
        return subprocess.run(
            ["ssh", "-F", str(config), "-o", f"ConnectTimeout={timeout}", "-l", user, node, *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANGS_S,
        )

    def on(self, node: str, *argv: str) -> subprocess.CompletedProcess[str]:
        argv = ("docker", "exec", f"rdm-lab-{self.name}-{node}", *argv)
        return subprocess.run(argv, capture_output=True, text=True, timeout=HANGS_S)


READY = ("running", "plugged", "ready")
HANGS_S = 600.0
"""Timeout in seconds, long enough for a busy machine."""
COMMAND_S = 3600.0
"""The same for a command, which may wait until another suite has made the lab's images."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab of two nodes, in a directory whose name needs quoting."""
    lab = Lab(tmp_path_factory.mktemp("a directory"), NAME)
    # Remove labs that a killed run has left.
    for name in (f"{NAME}{kind}" for kind in ("", "-2", "-k", "-b")):
        if left_over(name):
            Lab(lab.directory, name).run("down")
    try:
        result = lab.json("up", "--nodes", "2")
        assert result["ok"]
        assert [node["healthy"] for node in result["nodes"]] == [True, True]
        yield lab
    finally:
        lab.run("down")
        assert_nothing_left(lab, ())


def assert_nothing_left(lab: Lab, ids: tuple[str, ...]) -> None:
    """No container, volume, network, link, cgroup, process or file of the lab exists."""
    assert left_over(lab.name) == []
    assert list(lab.directory.iterdir()) == []
    assert not Files(lab.name, lab.files).control_path.exists()

    def gone(one: str) -> bool:
        links = Path("/sys/class/net").glob(f"br-{one[:12]}")
        # Unlike Path.glob, it goes on where others remove a cgroup meanwhile.
        return not any(links) and not any(one in names for _, names, _ in os.walk("/sys/fs/cgroup"))

    for one in ids:
        # The kernel removes them after a while.
        wait_until("no link and no cgroup stays", partial(gone, one))


def ids_of(lab: Lab) -> tuple[str, ...]:
    """The engine's IDs of the lab's networks and containers."""
    api = DockerAPI()
    mine = {"label": [f"rdm.provision.lab={lab.name}"]}
    found = [*api.get("/networks", filters=mine), *api.get("/containers/json", all=True, filters=mine)]
    return tuple(one["Id"] for one in found)


def test_a_second_start_changes_nothing(lab: Lab) -> None:
    result = lab.json("up", "--nodes", "2")
    assert result["actions"] == []
    assert not any(node["changed"] for node in result["nodes"] if "changed" in node)
    assert "Nothing was changed" in lab.run("up", "--nodes", "2").stdout


def test_lab_check_reports_changes_without_making_them(lab: Lab) -> None:
    assert "would make n3" in lab.run("up", "--nodes", "3", "--check").stdout
    assert list(lab.nodes()) == ["n1", "n2"]
    assert "would remove container n1" in lab.run("down", "--check").stdout
    assert list(lab.nodes()) == ["n1", "n2"]


def test_users_log_in_with_checked_host_keys(lab: Lab) -> None:
    root = lab.ssh("n1", "sudo -n id -u; docker version -f ok")
    assert root.stdout.split() == ["0", "ok"], root.stderr
    plain = lab.ssh("n2", "docker version -f ok; sudo -n id -u", user="plain")
    assert plain.stdout.split() == ["ok"]
    assert plain.returncode != 0
    assert lab.ssh("n1", "id -u", user="root").stdout.split() == ["0"]


def test_another_host_key_is_refused(lab: Lab) -> None:
    known = lab.files / ".rdm/lab/known_hosts"
    right = known.read_text(encoding="ascii")
    one, two = right.splitlines()
    known.write_text(f"{one.split()[0]} {' '.join(two.split()[1:])}\n", encoding="ascii")
    try:
        refused = lab.ssh("n1", "true")
        assert refused.returncode == 255
        assert "Host key verification failed" in refused.stderr
    finally:
        known.write_text(right, encoding="ascii")


def test_ansible_reaches_the_nodes_by_the_written_inventory(lab: Lab) -> None:
    ansible = Path(sys.executable).with_name("ansible")
    done = subprocess.run(
        [
            str(ansible),
            "-i",
            str(lab.files),
            "master:workers",
            "-b",
            "-m",
            "ansible.builtin.command",
            "-a",
            "id -un",
        ],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        cwd=lab.directory,
        env=lab.environment | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("root") == 2


def test_files_are_private(lab: Lab) -> None:
    own = lab.files / ".rdm/lab"
    for path in (own / "id_ed25519", own / "n1/ssh_host_ed25519_key", lab.files / "hosts.yml"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_cut_node_is_off_the_fabric_and_still_reached(lab: Lab) -> None:
    for number, node in enumerate(("n1", "n2"), 1):
        lab.on(node, "ip", "address", "replace", f"10.255.255.{number}/24", "dev", "ib0")

    def talks() -> bool:
        return lab.on("n1", "ping", "-c1", "-W1", "10.255.255.2").returncode == 0

    wait_until("n1 reaches n2", talks)
    assert lab.json("cut", "n2")["changed"] == {"n2": True}
    assert not talks()
    wait_until("n2 is cut", lambda: lab.nodes()["n2"], lambda now: now == ("running", "cut", "ready"))
    assert lab.ssh("n2", "true").returncode == 0
    assert lab.json("cut", "n2")["changed"] == {"n2": False}
    lab.run("heal", "n2")
    wait_until("n1 reaches n2", talks)


def test_a_stopped_node_comes_back_with_the_same_address_key_and_cable(lab: Lab) -> None:
    lab.on("n2", "touch", "/etc/kept", "/var/lib/docker/kept")
    assert lab.json("stop", "n2")["changed"] == {"n2": True}
    assert lab.nodes()["n2"] == ("exited", "unplugged", "")
    assert lab.ssh("n2", "true", timeout=5).returncode == 255
    output = lab.run("heal", "n2", expect=1).stderr
    assert "is not plugged in" in output
    started = follow(output, "lab start", lab.program, "--json").stdout
    assert json.loads(started)["changed"] == {"n2": True}
    lab.wait_ready(2)
    assert lab.json("heal", "n2")["changed"] == {"n2": False}
    assert lab.ssh("n2", "sudo ls /etc/kept /var/lib/docker/kept").returncode == 0


def test_dead_engine_of_a_node_is_restarted(lab: Lab) -> None:
    before = lab.on("n1", "pidof", "dockerd").stdout
    lab.on("n1", "kill", "-9", *before.split())
    engine = partial(lab.on, "n1", "pidof", "dockerd")
    wait_until("another engine runs", engine, lambda now: now.stdout not in ("", before))
    assert lab.on("n1", "rdm-lab", "wait", f"{HANGS_S / 2:g}").returncode == 0


def test_hanging_command_in_a_node_does_not_block_the_lab(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_engine, "EXEC_TIMEOUT_S", 0.5)
    with pytest.raises(LabProblem, match=r"sleep in \S+-n1 failed: it did not end within 0\.5 s"):
        lab_engine.LabEngine(connect(), lab.name)._exec("n1", ["sleep", "600"])


def test_lab_grows_is_repaired_and_shrinks(lab: Lab) -> None:
    first = ids_of(lab)
    lab.run("stop", "n2")
    result = lab.json("up", "--nodes", "3")
    assert result["actions"][:2] == ["make n3", "start n2"]
    lab.wait_ready(3)
    lab.run("up", "--nodes", "2")
    assert list(lab.nodes()) == ["n1", "n2"]
    assert set(ids_of(lab)) == set(first), "the other nodes stayed as they were"
    assert not (lab.files / ".rdm/lab/n3").exists()


def test_two_labs_side_by_side(lab: Lab, tmp_path: Path) -> None:
    other = Lab(tmp_path, f"{NAME}-2")
    try:
        output = other.run("stop", "n1", expect=3).stderr
        made = follow(output, "lab up", other.program, "--nodes", "1", "--json").stdout
        addresses = {node["address"] for node in json.loads(made)["nodes"]}
        shown = lab.json("status")["nodes"]
        assert addresses.isdisjoint(node["address"] for node in shown)
        assert [set(node) >= {"name", "state", "cable", "engine"} for node in shown] == [True] * 2
        assert other.ssh("n1", "hostname").stdout.split() == ["n1"]
    finally:
        ids = ids_of(other)
        other.run("down")
    assert_nothing_left(other, ids)
    lab.wait_ready(2)


def moments(lab: Lab) -> dict[str, Any]:
    """When to interrupt a start."""
    mine = {"label": [f"rdm.provision.lab={lab.name}"]}
    api = DockerAPI()
    return {
        "its playbook has begun": lambda: bool(marked_processes(lab.name)),
        "the first files are there": lambda: (lab.files / ".rdm/lab").exists(),
        "the network is there": lambda: bool(api.get("/networks", filters=mine)),
        "the first node is there": lambda: len(api.get("/containers/json", all=True, filters=mine)) > 1,
        "the nodes get ready": lambda: (lab.files / "hosts.yml").exists(),
    }


@pytest.mark.parametrize(
    ("moment", "whole_group"),
    [
        pytest.param("its playbook has begun", False, marks=pytest.mark.long),
        pytest.param("its playbook has begun", True, marks=pytest.mark.long),
        pytest.param("the first files are there", False, marks=pytest.mark.long),
        pytest.param("the network is there", True, marks=pytest.mark.long),
        ("the first node is there", False),
        ("the nodes get ready", True),
    ],
)
def test_nothing_is_left_of_a_killed_start(tmp_path: Path, moment: str, whole_group: bool) -> None:
    lab = Lab(tmp_path, f"{NAME}-k")
    try:
        start = subprocess.Popen(
            lab.argv("up", "--nodes", "2"),
            cwd=tmp_path,
            env=lab.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until(moment, moments(lab)[moment], pause=partial(time.sleep, 0.005))
        finally:
            (os.killpg if whole_group else os.kill)(start.pid, signal.SIGKILL)
            start.wait()
        ids = ids_of(lab)
    finally:
        lab.run("down")
    assert_nothing_left(lab, ids)
    if moment == "the first node is there":
        assert lab.json("up", "--nodes", "1")["ok"]
        ids = ids_of(lab)
        lab.run("down")
        assert_nothing_left(lab, ids)


def test_nothing_is_left_of_a_killed_build_of_the_images(tmp_path: Path) -> None:
    directory, temporary = tmp_path / "work", tmp_path / "tmp"
    directory.mkdir()
    temporary.mkdir()
    # An empty cache, so that the images have to be built.
    lab = Lab(directory, f"{NAME}-b", {"TMPDIR": str(temporary), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    argv = lab.argv("up", "--image-source", "packages")
    quiet = subprocess.DEVNULL
    start = subprocess.Popen(
        argv, cwd=directory, env=lab.environment, stdin=quiet, stdout=quiet, stderr=quiet
    )
    try:
        # Inside the new root file system: packages are being unpacked.
        status = partial(temporary.glob, "rdm-provision-lab.*/output/*/var/lib/dpkg/status")
        wait_until("packages are unpacked", lambda: list(status()), timeout=COMMAND_S)
    finally:
        start.kill()
        start.wait()
        lab.run("down")
    assert_nothing_left(lab, ())
    # The interrupted module releases its locks before Ansible's wrapper removes its files.
    wait_until("no file is left", lambda: list(temporary.iterdir()), lambda left: not left)
    assert str(tmp_path) not in Path("/proc/mounts").read_text(encoding="utf-8")


def test_unknown_node_is_named_with_the_existing_ones(lab: Lab) -> None:
    output = lab.run("stop", "n1", "n9", expect=3).stderr
    assert "has no node 'n9': it has n1, n2" in output
    assert len(output.strip().splitlines()) <= 2
    assert "n1: ran already" in lab.run("start", "n1").stdout


def test_foreign_directory_is_not_changed(tmp_path: Path) -> None:
    other = Lab(tmp_path, f"{NAME}-d")
    other.files.mkdir(parents=True)
    (other.files / "hosts.yml").write_text("mine\n", encoding="utf-8")
    assert "is not a lab's" in other.run("up", expect=1).stderr
    other.run("down")
    assert (other.files / "hosts.yml").read_text(encoding="utf-8") == "mine\n"


def made_image(api: DockerAPI, version: str) -> str:
    """Make an image as a recipe of this version would; return its name."""
    image = import_image(api, "rdm-test/lab-image:1", busybox_rootfs())
    labelled = {"Image": image, "Labels": {lab_recipe.RECIPE_LABEL: version}}
    container = api.post("/containers/create", labelled)["Id"]
    api.post("/commit", labelled, container=container, repo=lab_recipe.NODE_REPOSITORY, tag=version)
    api.delete(f"/containers/{container}")
    return f"{lab_recipe.NODE_REPOSITORY}:{version}"


def test_superseded_images_are_removed_unless_a_lab_uses_them(engine: Engine, tmp_path: Path) -> None:
    api = engine.api
    client = connect(engine.socket)
    made_here = images.Images(client, ROOT / "roles/lab/files", tmp_path, "debian:none")
    versions = ("old", "used", "mounted", made_here.version)
    made = [made_image(api, version) for version in versions]
    for name in versions:
        (tmp_path / name).mkdir()
    mount = {"Binds": [f"{tmp_path}/mounted:/srv/rdm/images:ro"]}
    containers = [
        api.post("/containers/create", {"Image": image, "HostConfig": host})["Id"]
        for image, host in ((made[1], {}), (made[3], mount))
    ]
    try:
        made_here.forget_superseded()
        assert [bool(image_id(client, name)) for name in made] == [False, True, True, True]
        assert {path.name for path in tmp_path.iterdir()} == {*versions[1:]}
    finally:
        for container in containers:
            api.delete(f"/containers/{container}")
        for name in made[1:]:
            api.delete(f"/images/{name}")


def test_images_of_a_lab_are_removed_after_it(engine: Engine, tmp_path: Path) -> None:
    """On a private engine, since it concerns the images of all labs."""
    api, client = engine.api, connect(engine.socket)
    lab = Lab(tmp_path, f"{NAME}-u", {"DOCKER_HOST": f"unix://{engine.socket}"})
    labels = {"rdm.provision.lab": lab.name}
    used = {"Image": made_image(api, "u"), "Cmd": ["sleep", "infinity"], "Labels": labels}
    api.post(f"/containers/{api.post('/containers/create', used)['Id']}/start")
    cache = tmp_path / "cache"
    with pytest.raises(LabProblem) as caught:
        images.remove(client, cache, check=False)
    follow(str(caught.value), "lab down", lab.program)
    assert images.remove(client, cache, check=False)
    assert not image_id(client, f"{lab_recipe.NODE_REPOSITORY}:u")


def test_purging_removes_every_image_and_the_cache(engine: Engine, tmp_path: Path) -> None:
    api, client = engine.api, connect(engine.socket)
    made_image(api, "x")
    cache = images.cache_directory(str(tmp_path / "cache"))
    (cache / "x").mkdir(parents=True)
    assert images.remove(client, cache, check=True)
    assert image_id(client, f"{lab_recipe.NODE_REPOSITORY}:x")
    assert images.remove(client, cache, check=False)
    assert not image_id(client, f"{lab_recipe.NODE_REPOSITORY}:x")
    assert image_id(client, "rdm-test/lab-image:1")
    assert not cache.exists()
    assert not images.remove(client, cache, check=False)
