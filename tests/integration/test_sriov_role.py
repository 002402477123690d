"""The role sriov on a node: install, repair, restart under containers, migrate from upstream, remove.

The engine, the plugin and its program are real. systemd is not: a stand-in keeps the unit's service. What is
handed out is a whole interface, one end of a veth pair; where preflight looks for VFs, it is shown a tree of
files.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin import installation
from ansible_collections.rdm.provision.plugins.module_utils.sriov.decision import DesiredPf
from ansible_collections.rdm.provision.plugins.module_utils.sriov.kernel import bring
from ansible_collections.rdm.provision.plugins.modules.node_facts import node_facts
from ansible_collections.rdm.provision.plugins.plugin_utils.checks import sriov as sriov_checks
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.findings import Findings

from tests.integration.conftest import BUSYBOX
from tests.integration.engine import Engine, private_engine
from tests.integration.images import busybox_rootfs, import_image
from tests.integration.plays import Played, run_plays
from tests.integration.sriov_node import HANGS_S, remove_network
from tests.unit.plugins.desired_states import wanted as desired
from tests.unit.plugins.module_utils.sriov.fake_kernel import FakeKernel

ROOT = Path(__file__).parents[2]
NETWORK = "rdm-test-fabric"
UPSTREAM_PLUGIN = ROOT / "tests/integration/upstream_plugin.py"
LABELS = {"rdm.provision.cluster": "rdm", "rdm.provision.role": "plugin"}


class Node:
    """A node with an engine, on which the role runs."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self.engine = engine
        self.directory = directory
        self.parent = f"w{os.getpid()}"
        self.socket = Path(f"/run/docker/plugins/rdm-role-{os.getpid()}.sock")
        self.unit = directory / "system/rdm-sriov.service"
        self.program = directory / "lib/rdm-sriov"
        self.state = directory / "state"

    def role(
        self, *flags: str, seen: dict[str, Any] | None = None, times: int = 1, **variables: Any
    ) -> Played:
        """Run the role, after a preflight with these facts."""
        node = {"docker": {"containers": []}, "network_plugin": installation.facts()}
        return run_plays(
            self.directory,
            [{"tasks": [{"name": "Run", "ansible.builtin.include_role": {"name": "rdm.provision.sriov"}}]}]
            * times,
            *flags,
            docker_host=f"unix://{self.engine.socket}",
            preflight_facts={"node": {**node, **(seen or {})}},
            preflight_plan={},
            rdm_docker_socket=self.engine.socket,
            sriov_socket=str(self.socket),
            network_driver=self.socket.stem,
            sriov_enabled=True,
            network_name=NETWORK,
            __sriov_unit=str(self.unit),
            __sriov_program=str(self.program),
            __sriov_directory=str(self.state),
            **{"sriov_run_as": "unit", **variables},
        )

    def docker(self, *words: object) -> str:
        """Run docker; return its output."""
        done = subprocess.run(
            ["docker", *map(str, words)],
            env=self.engine.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=HANGS_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def make_network(self) -> None:
        """Create a network whose containers get the interface."""
        options = ["-o", "mode=passthrough", "-o", f"netdevice={self.parent}", "--subnet", "192.169.18.0/24"]
        labels = ["--label", "rdm.provision.cluster=rdm", "--label", "rdm.provision.role=network"]
        self.docker("network", "create", "-d", self.socket.stem, *options, *labels, NETWORK)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node without a plugin."""
    directory = tmp_path_factory.mktemp("node")
    with private_engine() as engine, pytest.MonkeyPatch.context() as patch:
        node = Node(engine, directory)
        tools = directory / "tools"
        tools.mkdir()
        (tools / "systemctl").symlink_to(ROOT / "tests/integration/systemctl")
        patch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        patch.setenv("STAND_IN_UNIT", str(node.unit))
        import_image(engine.api, BUSYBOX, busybox_rootfs())
        link = ["ip", "link", "add", node.parent, "type", "veth", "peer", "name", f"{node.parent}x"]
        subprocess.run(link, check=True)
        try:
            yield node
        finally:
            if node.unit.exists():
                subprocess.run(["systemctl", "disable", "--now", node.unit.name], check=True)
            node.socket.unlink(missing_ok=True)
            # After a failure the interface may be in a container.
            subprocess.run(["ip", "link", "del", f"{node.parent}x"], check=False)


def test_plugin_is_installed_once_as_predicted(node: Node) -> None:
    checked = node.role("--check", "--diff")
    assert (checked.status, checked.changes) == (0, [1]), checked.output
    assert "Before=docker.service" in checked.output
    assert not node.program.exists()
    installed = node.role(times=2)
    assert (installed.status, installed.changes) == (0, [1, 0]), installed.output
    assert installation.enabled(str(node.unit))
    assert installation.running(str(node.socket))


def test_new_program_takes_over_under_a_running_container(node: Node) -> None:
    node.make_network()
    node.docker("run", "-d", "--init", "--name", "ctr", "--ip", "192.169.18.5", "--network", NETWORK, BUSYBOX)
    before = installation.running(str(node.socket))
    with node.program.open("ab") as program:
        program.write(b"# changed by hand")
    retried = node.role()
    assert (retried.status, retried.changes) == (0, [1]), retried.output
    # The right program ran all the time.
    assert not retried.results["rdm.provision.sriov : Install the plugin"]["restarted"]
    node.unit.write_text(node.unit.read_text().replace("RestartSec=1", "RestartSec=9"))
    assert node.role().results["rdm.provision.sriov : Install the plugin"]["restarted"]
    assert installation.running(str(node.socket)) == before
    assert "eth0" in node.docker("exec", "ctr", "ls", "/sys/class/net")
    node.docker("restart", "-t", "1", "ctr")
    assert "eth0" in node.docker("exec", "ctr", "ls", "/sys/class/net")


def test_a_plugin_that_died_or_is_not_enabled_is_repaired(node: Node) -> None:
    watch = {"program": str(node.program), "socket": str(node.socket), "state": str(node.state)}
    right = installation.observe(watch)
    subprocess.run(["systemctl", "disable", "--now", node.unit.name], check=True)
    changed = {what for what, state in installation.observe(watch).items() if state != right[what]}
    assert changed == {f"the plugin at {node.socket}"}  # observe() checks the node's own unit
    retried = node.role()
    assert (retried.status, retried.changes) == (0, [1]), retried.output
    assert installation.enabled(str(node.unit))
    assert installation.observe(watch) == right


def test_plugin_stays_while_a_network_needs_it_and_is_removed_completely(node: Node) -> None:
    refused = node.role(sriov_state="absent")
    assert refused.status != 0
    assert f"a network with driver {node.socket.stem} need it: {NETWORK}" in refused.output
    node.docker("rm", "-f", "ctr")
    remove_network(lambda: node.docker("network", "rm", NETWORK))
    other = node.role(sriov_state="absent", rdm_cluster="other")
    assert (other.status, other.changes) == (0, [0]), other.output
    gone = node.role(sriov_state="absent", times=2)
    assert (gone.status, gone.changes) == (0, [1, 0]), gone.output
    assert not node.program.parent.exists()
    assert not node.state.exists()
    assert not node.unit.exists()
    assert not node.socket.exists()


def test_a_foreign_socket_or_unit_is_refused_in_one_sentence(node: Node) -> None:
    node.unit.write_text("[Service]\nExecStart=/bin/true\n")
    assert f"{node.unit} is not ours: move it away" in node.role().output
    node.unit.write_text("# Of the cluster theirs\n[Service]\nExecStart=/bin/true\n")
    assert "is of the cluster theirs: leave the plugin to it (sriov_enabled: false)" in node.role().output
    node.unit.unlink()
    node.program.parent.mkdir(exist_ok=True)
    theirs = node.directory / "theirs"
    program = [
        sys.executable,
        "-c",
        "import socket,sys,time; s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1])",
    ]
    program[-1] += "; s.listen(); print(1, flush=True); time.sleep(600)"
    with subprocess.Popen([*program, str(node.socket)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        played = node.role()
        assert played.status != 0
        assert f"something else serves {node.socket} already" in played.output
        other.kill()
    node.socket.unlink()
    assert not node.unit.exists(), theirs


class Card(FakeKernel):
    """A card whose physical function has the name of the node's interface. One of its VFs is in use."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory)
        self.name = name
        self.device = (self.sys / "class/net/eth1/device").resolve()
        for folder in (self.sys / "class/net", self.device / "net"):
            (folder / "eth1").rename(folder / name)
        self.make(self.device.name, 4)
        self.hold(name, 0)

    @property
    def number(self) -> Path:
        """The file to which the upstream plugin writes 0."""
        return self.device / "sriov_numvfs"

    def obey(self) -> None:
        """Apply the number that was written there."""
        wanted = int(self.number.read_text())
        self.number.write_text("4\n")
        self.make(self.device.name, wanted)

    def preflight(self, node: Node, number: int) -> list[str]:
        """Return the problems with this number of VFs on the node."""
        wanted = {"interfaces": [self.name], "vfs": max(1, number)}
        facts: Any = node_facts(str(self.sys), "/dev", node.engine.socket, sriov=wanted)
        for network in facts["docker"]["networks"]:
            if network["driver"] == node.socket.stem:
                network["driver"] = "sriov"
        state = desired(
            network_name=NETWORK,
            network_driver="sriov",
            network_parent=self.name,
            network_replace=True,
            plugin="rdm-sriov",
            sriov_vfs=number,
        )
        findings = Findings([], [])
        sriov_checks.vfs(state, facts, findings)
        sriov_checks.other_networks(state, facts, findings)
        return [problem.sentence for problem in findings.problems]


def test_a_cluster_leaves_upstream_only_on_request_and_completely(node: Node) -> None:
    card = Card(node.directory / "card", node.parent)
    process = ["--socket", node.socket, "--state", node.directory / "upstream-state"]
    process += ["--engine", node.engine.socket]
    stand_in = [sys.executable, UPSTREAM_PLUGIN, card.number, *process]
    labels = [word for item in LABELS.items() for word in ("--label", "=".join(item))]
    node.docker("run", "-d", "--init", "--name", "rdm-sriov-plugin", *labels, BUSYBOX)
    # The kernel kills it with the container's first process.
    container = node.docker("inspect", "--format", "{{.State.Pid}}", "rdm-sriov-plugin")
    inside = ["nsenter", "--pid", "--target", container]
    with (
        subprocess.Popen([*inside, *map(str, stand_in)], stdout=subprocess.PIPE) as old,
        contextlib.ExitStack() as ends,
    ):
        ends.callback(old.kill)
        assert old.stdout is not None
        old.stdout.readline()
        node.make_network()
        ours = ["--label", "rdm.provision.cluster=rdm", "--label", "rdm.provision.role=container"]
        node.docker("run", "-d", "--init", "--name", "rdm", *ours, "--network", NETWORK, BUSYBOX)
        [problem] = card.preflight(node, 0)
        assert problem.startswith(
            "sriov_vfs 0 makes no virtual functions, and rdma/sriov-plugin takes those of"
        )
        assert card.preflight(node, 8) == [], "the VF that is taken is that of the container which is to end"
        card.hold(node.parent, 1)
        [problem] = card.preflight(node, 8)
        assert problem.startswith(
            f"{node.parent} cannot be changed (it has 4 VFs, not 8) while a container has VF 0"
        )
        seen = {
            "docker": {"containers": [{"name": "rdm-sriov-plugin", "state": "running", "labels": LABELS}]}
        }
        refused = node.role(seen=seen)
        assert refused.status != 0
        assert "the plugin here is upstream, not rdm-sriov: set network_replace: true" in refused.output
        assert node.docker("inspect", "--format", "{{.State.Running}}", "rdm") == "true"
        checked = node.role(
            "--check", "--diff", seen=seen, network_replace=True, container_protect_jobs=False
        )
        assert checked.status == 0, checked.output
        for goes in (NETWORK, "rdm-sriov-plugin"):
            assert f'"before": "{goes}\\n"' in checked.output
        assert "Before=docker.service" in checked.output
        both = ("rdm", "rdm-sriov-plugin")
        assert node.docker("inspect", "--format", "{{.State.Running}}", *both).split() == ["true", "true"]
        assert NETWORK in node.docker("network", "ls")
        assert not node.unit.exists()
        assert not node.program.exists()
        moved = node.role(seen=seen, network_replace=True, container_protect_jobs=False)
        assert moved.status == 0, moved.output
        old.wait(HANGS_S)
    assert card.number.read_text() == "0", "the upstream plugin takes all VFs with its last network"
    card.obey()
    [problem] = card.preflight(node, 0)
    assert problem.startswith(
        f"sriov_vfs 0 makes no virtual functions, and {node.parent} has none now: set sriov_vfs"
    )
    assert bring(card, DesiredPf(node.parent, 8))
    assert card.preflight(node, 0) == card.preflight(node, 8) == []
    assert installation.running(str(node.socket))
    assert NETWORK not in node.docker("network", "ls")
    # The rest of the run: the network and the container.
    node.make_network()
    node.docker("network", "connect", NETWORK, "rdm")
    node.docker("start", "rdm")
    assert "eth0" in node.docker("exec", "rdm", "ls", "/sys/class/net")
    node.docker("rm", "-f", "rdm")
    remove_network(lambda: node.docker("network", "rm", NETWORK))
    assert json.loads((node.state / "state.json").read_text())["networks"] == {}
