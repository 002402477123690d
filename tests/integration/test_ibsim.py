"""Our readers of ports and subnet managers, compared with the real InfiniBand tools on ibsim's subnet.

ibsim's library stands in for the kernel under ibstat, sminfo and opensm: it gives each of their processes a
/sys of its own, in a directory, which our readers get as their root.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.facts import Port
from ansible_collections.rdm.provision.plugins.module_utils.hardware import rdma_tools, sysfs

from trainer.tests.waiting import wait_until

SUBNET = """
Switch 8 "S1"
[1] "H1"[1]
[2] "H2"[1]
[3] "H3"[1]

Hca 1 "H1"
[1] "S1"[1]

Hca 1 "H2"
[1] "S1"[2]

Hca 1 "H3"
[1] "S1"[3]
"""
PROGRAMS = ("ibsim", "ibstat", "opensm", "sminfo")
DEVICE = "ibsim0"


class Subnet:
    """A simulated subnet, whose hosts are directories that tools run in."""

    def __init__(self, directory: Path, library: str) -> None:
        self.directory = directory
        # Several simulations may run at once: the library finds its simulator by this number.
        self.environment = {"LD_PRELOAD": library, "IBSIM_SOCKNAME": f"rdm-{os.getpid()}"}

    def env(self, host: str) -> dict[str, str]:
        return {**os.environ, **self.environment, "SIM_HOST": host}

    def ibstat(self, host: str) -> str:
        """Return what ibstat prints on a host."""
        done = subprocess.run(
            ["ibstat"], cwd=self.directory, env=self.env(host), capture_output=True, text=True, timeout=240
        )
        return done.stdout

    def port(self, host: str) -> Port:
        """Return the host's port, as we read it from the /sys of a process there."""
        # It prints what it has read, so /sys is complete; then it waits for its standard input.
        command = ["cat", f"/sys/class/infiniband/{DEVICE}/node_guid", "-"]
        with subprocess.Popen(
            command,
            cwd=self.directory,
            env=self.env(host),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout
            assert process.stdout.readline()
            (device,) = sysfs.infiniband(str(self.directory / f"sys-{process.pid}" / "sys"), "/nowhere")
            process.terminate()
        return device["ports"][0]


@pytest.fixture
def subnet(tmp_path: Path) -> Iterator[Subnet]:
    library = next(Path("/usr/lib").glob("*/umad2sim/libumad2sim.so"), None)
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    assert library, "the package libumad2sim0 is missing: make setup-dev"
    assert not missing, f"{missing} are missing: make setup-dev"
    (tmp_path / "net").write_text(SUBNET)
    found = Subnet(tmp_path, str(library))
    environment = {**os.environ, "IBSIM_SOCKNAME": found.environment["IBSIM_SOCKNAME"]}
    with (
        (tmp_path / "ibsim.log").open("wb") as log,
        # It ends with its standard input, so keep that open.
        subprocess.Popen(
            ["ibsim", "-s", "net"],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        ) as simulator,
    ):
        try:
            ready = tmp_path / "ibsim.log"
            wait_until("ibsim is ready", lambda: b"Network simulator ready" in ready.read_bytes())
            yield found
        finally:
            simulator.kill()


@contextlib.contextmanager
def manager(subnet: Subnet) -> Iterator[None]:
    """Run a subnet manager on the first host."""
    command = ["opensm", "-f", str(subnet.directory / "opensm.log")]
    with (
        (subnet.directory / "opensm.out").open("wb") as out,
        subprocess.Popen(
            command,
            cwd=subnet.directory,
            env=subnet.env("H1"),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        ) as process,
    ):
        try:
            yield
        finally:
            process.kill()


def test_ports_and_subnet_manager_as_the_tools_see_them(
    subnet: Subnet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {**subnet.environment, "SIM_HOST": "H2"}.items():
        monkeypatch.setenv(name, value)

    def query() -> str:
        return rdma_tools.subnet_manager(DEVICE, 1)["answer"]

    assert (field(subnet.ibstat("H2"), "State"), field(subnet.ibstat("H2"), "SM lid")) == (
        "Initializing",
        "0",
    )
    before = subnet.port("H2")
    assert (before["state"], before["physical_state"], before["sm_lid"]) == ("INIT", "LinkUp", 0)
    assert query() == "no"
    assert rdma_tools.subnet_manager("mlx5_7", 1)["answer"] == "unknown"

    with manager(subnet):
        wait_until("opensm brings the subnet up", lambda: field(subnet.ibstat("H2"), "State") == "Active")
        after = subnet.port("H2")
        output = subnet.ibstat("H2")
        assert (after["state"], after["lid"], after["sm_lid"]) == (
            "ACTIVE",
            int(field(output, "Base lid")),
            int(field(output, "SM lid")),
        )
        wait_until("sminfo is answered", lambda: query() == "yes")
        assert "SMINFO_MASTER" in rdma_tools.subnet_manager(DEVICE, 1)["text"]

    # The port stays active without its subnet manager: only a query shows that.
    assert field(subnet.ibstat("H2"), "State") == "Active"
    assert query() == "no"


def field(text: str, name: str) -> str:
    """Return a field of ibstat's first port."""
    match = re.search(rf"^\s*{name}: (.*)$", text, re.MULTILINE)
    assert match, text
    return match[1]
