"""In RDMA's mode exclusive, an RDMA device follows its container, with old and new Docker Engines.

The kernel has no RDMA devices here: they are files, and a script in the place of `rdma` notes into which
network namespace each was to go. The containers and their namespaces are real.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.zip_program import packed_program
from ansible_collections.rdm.provision.rdm_lab.recipe import PLUGIN

from tests.conftest import ROOT
from tests.integration.sriov_node import VFS, Node, sriov_node
from trainer.tests.waiting import wait_until

MADE_LATER = ("20.10", "26.1")
"""Engines that create a container's namespace after their last call."""
SERVES = "plugin.main(None, stand_ins)"
# An engine of another release has its own mount namespace, with its containers' namespaces.
RDMA = """
from ansible_collections.rdm.provision.rdm_sriov import rdma_namespace

class Devices(rdma_namespace.RdmaNamespaces):
    def lend(self, key, ethernet, namespace):
        engine = Path({engine!r}).read_text().strip()
        super().lend(key, ethernet, f"/proc/{{engine}}/root{{namespace}}")
"""


class Rdma:
    """The RDMA devices of a node, one per VF, and the namespaces that they moved to.

    Attributes:
        node: that has them.
        late: whether a device moves after its container has started.
    """

    def __init__(self, node: Node, late: bool) -> None:
        self.node, self.late = node, late
        self.root = node.engine.root / "rdma"
        self.moves, self.error = self.root / "calls", self.root / "error"
        mode = self.root / "sys/module/ib_core/parameters/netns_mode"
        mode.parent.mkdir(parents=True)
        mode.write_text("N\n")
        self.come_back()
        script = self.root / "bin/rdma"
        script.parent.mkdir()
        # Its arguments: dev set DEVICE netns NAME.
        script.write_text(
            f"#!/bin/sh\n[ ! -e {self.error} ] || {{ cat {self.error} >&2; exit 1; }}\n"
            f"rm {self.root}/sys/class/infiniband/$3/device || exit\n"
            f"echo $3 $(stat -L -c %i {self.root}/netns/$5) >> {self.moves}\n"
        )
        script.chmod(0o755)
        text = (ROOT / "roles/lab/files" / PLUGIN).read_text()
        assert SERVES in text
        roots = f"{str(self.root / 'sys')!r}, {str(self.root / 'netns')!r}"
        text = text.replace(SERVES, f"plugin.main(None, stand_ins, Devices({roots}, plugin.say))")
        own = RDMA.format(engine=str(node.engine.root / "docker.pid"))
        text = text.replace("def main", f"{own}\n\ndef main", 1)
        node.program.write_bytes(packed_program(ROOT, text))

    def come_back(self) -> None:
        """Return all devices to the node, as the kernel does when containers' namespaces end."""
        for number in range(VFS):
            vf = self.root / "vfs" / f"{self.node.parent}v{number}"
            vf.mkdir(parents=True, exist_ok=True)
            device = self.root / f"sys/class/infiniband/mlx5_{number}/device"
            device.parent.mkdir(parents=True, exist_ok=True)
            if not device.is_symlink():
                device.symlink_to(vf)
            verbs = self.root / f"sys/class/infiniband_verbs/uverbs{number}"
            verbs.mkdir(parents=True, exist_ok=True)
            (verbs / "ibdev").write_text(f"mlx5_{number}\n")

    def moved(self) -> list[str]:
        """Return which device moved to which network namespace since the last forget()."""
        return self.moves.read_text().splitlines() if self.moves.exists() else []

    def forget(self) -> None:
        """Forget where devices moved."""
        self.moves.unlink(missing_ok=True)

    def wanted(self, name: str) -> str:
        """Return where the device of a running container has to be."""
        pid = self.node.docker("inspect", "--format", "{{.State.Pid}}", name)
        address = self.node.address(name)
        held = [one["vf"] for one in self.node.promised().values() if one["hardware"] == address]
        assert len(held) == 1
        return f"mlx5_{held[0].rpartition('v')[2]} {Path(f'/proc/{pid}/ns/net').stat().st_ino}"

    def log(self) -> str:
        """Return the plugin's log."""
        return self.node.log.read_text()


@pytest.fixture(scope="module", params=["20.10", pytest.param("26.1", marks=pytest.mark.long), "28.5+"])
def rdma(request: pytest.FixtureRequest) -> Iterator[Rdma]:
    """A node whose plugin finds RDMA devices, in the mode exclusive."""
    with pytest.MonkeyPatch.context() as patch, sriov_node(request.param) as node:
        found = Rdma(node, request.param in MADE_LATER)
        patch.setenv("PATH", f"{found.root}/bin:{os.environ['PATH']}")
        node.stop_plugin()
        node.start_plugin()
        yield found


def test_each_container_has_its_device_in_its_namespace_after_every_start(rdma: Rdma) -> None:
    node = rdma.node
    node.run("na", "--restart", "always", "--ip", "192.169.16.100")
    node.run("nb")
    both = sorted([rdma.wanted("na"), rdma.wanted("nb")])
    assert both[0].split()[1] != both[1].split()[1]
    wait_until(f"they moved: {both}", rdma.moved, lambda moved: sorted(moved) == both)
    before = node.address("na")
    node.remove("nb")

    def follows() -> None:
        wait_until("it follows", rdma.moved, lambda moved: moved == [rdma.wanted("na")])

    rdma.come_back()
    rdma.forget()
    node.docker("restart", "-t", "1", "na")
    follows()
    # Only the plugin is called here.
    rdma.come_back()
    rdma.forget()
    node.engine.kill()
    node.engine.start()
    node.wait_back("na", before)
    follows()
    node.remove("na")
    assert node.promised() == {}
    rdma.come_back()
    rdma.forget()


def test_a_device_that_cannot_move_is_named(rdma: Rdma) -> None:
    node = rdma.node
    rdma.error.write_text("error: Operation not supported\n")
    message = "cannot move to its container, as the mode exclusive requires: rdma dev set"
    if rdma.late:
        node.run("na")
        wait_until("it is named", rdma.log, lambda log: message in log)
    else:
        with pytest.raises(RuntimeError, match=message):
            node.run("na")
    assert "error: Operation not supported. Without it: rdma system set netns shared" in rdma.log()
    node.remove("na")
    assert node.promised() == {}
    rdma.error.unlink()
    names = [f"c{number}" for number in range(VFS)]
    for name in names:
        node.run(name)
    wanted = sorted(map(rdma.wanted, names))
    wait_until(f"they moved: {wanted}", rdma.moved, lambda moved: sorted(moved) == wanted)
    node.remove(*names)
    assert node.promised() == {}
