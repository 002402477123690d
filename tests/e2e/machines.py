"""A lab whose nodes are virtual machines, and access to them."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.e2e.product import ADDRESSES, DEADLINE_S, Lab, Product
from tests.integration.engines import is_of
from tests.labs import lab_name, left_over
from trainer.tests.waiting import wait_until

NODES = ("n1", "n2")
VERSIONS = {"20.10": "20.10", "26.1": "26.1", "newest": "28.5+"}
"""The value of `lab up --engine` -> the engine's version."""
VFS = 7
"""Virtual functions of each card."""

# Without KVM a boot takes a minute of CPU time, on a machine that may be busy.
BOOT_S = 900


@dataclass(frozen=True)
class MachineLab(Lab):
    """A lab whose nodes are reached through ssh instead of this machine's engine."""

    def on(self, node: str, *argv: str, check: bool = True) -> str:
        """Run a program on a node, as root, and return what it wrote."""
        done = self._run(node, *argv)
        assert not check or done.returncode == 0, f"{shlex.join(argv)} on {node}: {done.stdout}{done.stderr}"
        return done.stdout

    def error_of(self, node: str, *argv: str) -> str:
        """Run a program on a node, as root, that must fail; return its error."""
        done = self._run(node, *argv)
        assert done.returncode, f"{shlex.join(argv)} on {node} was not refused: {done.stdout}"
        return done.stderr

    def hang_up(self) -> None:
        """End the connections to removed nodes: the next lab's nodes have the same names."""
        for path in self.product.directory.glob("*.ssh"):
            ssh = ["ssh", "-o", f"ControlPath={path}", "-O", "exit", path.stem]
            subprocess.run(ssh, check=False, capture_output=True, timeout=DEADLINE_S)

    def write(self, node: str, path: str, content: str | bytes) -> None:
        """Write a file on a node, as root."""
        given = content.encode() if isinstance(content, str) else content
        done = self._run(node, "dd", f"of={path}", "status=none", given=given)
        assert done.returncode == 0, done.stderr

    def _run(self, node: str, *argv: str, given: bytes = b"") -> subprocess.CompletedProcess[str]:
        connection = (
            *("-F", str(self.inventory / ".rdm/lab/ssh_config")),
            # A login costs a second where every instruction is translated.
            *("-o", "ControlMaster=auto", "-o", "ControlPersist=60"),
            *("-o", f"ControlPath={self.product.directory}/{node}.ssh"),
            # For a machine that reboots.
            *("-o", "ConnectTimeout=60", "-o", "ServerAliveInterval=20"),
        )
        done = subprocess.run(
            ["ssh", *connection, node, "--", "sudo", shlex.join(argv)],
            input=given,
            capture_output=True,
            timeout=DEADLINE_S,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def inside(self, node: str, *argv: str, name: str = "rdm", check: bool = True) -> str:
        """Run a program in a container of a node."""
        return self.on(node, "docker", "exec", name, *argv, check=check)

    def reaches(self, node: str, address: str, *, name: str = "rdm") -> bool:
        """Whether a container gets answers from an address."""
        ping = ["ping", "-c", "1", "-W", "2", address]
        return ", 0% packet loss" in self.inside(node, *ping, name=name, check=False)

    def vfs(self, node: str, pf: str = "ib0") -> list[dict[str, Any]]:
        """Return the kernel's virtual functions of a node's card."""
        (card,) = json.loads(self.on(node, "ip", "-details", "-json", "link", "show", pf))
        return list(card.get("vfinfo_list") or [])

    def vf(self, node: str, name: str = "rdm", pf: str = "ib0") -> dict[str, Any]:
        """Return the VF that a node's container has, found by its hardware address."""
        shown = self.on(node, "nsenter", "-n", "-t", self.pid(node, name), "ip", "-json", "link")
        addresses = {link["address"] for link in json.loads(shown)}
        (found,) = [one for one in self.vfs(node, pf) if one["address"] in addresses]
        return found

    def at_home(self, node: str, pf: str = "ib0") -> list[str]:
        """Return the interfaces of a card's virtual functions that no container has."""
        listed = self.on(node, "sh", "-c", f"ls -d /sys/class/net/{pf}/device/virtfn*/net/*", check=False)
        return [path.rpartition("/")[2] for path in listed.split()]

    def all_reach(self, addresses: Mapping[str, str] = ADDRESSES) -> None:
        """Assert that each container reaches that of the other node."""
        for node, other in (NODES, NODES[::-1]):
            wait_until(f"{node} reaches {addresses[other]}", partial(self.reaches, node, addresses[other]))

    def pid(self, node: str, name: str = "rdm") -> str:
        """Return the process id, on the node, of a container's first process."""
        return self.on(node, "docker", "inspect", "--format", "{{.State.Pid}}", name).strip()

    def reboot(self, node: str) -> None:
        """Reboot a node as its administrator does, and wait until it is ready again."""
        before = self.on(node, "cat", "/proc/sys/kernel/random/boot_id")
        self.on(node, "systemctl", "reboot", check=False)

        def again() -> str:
            return self.on(node, "cat", "/proc/sys/kernel/random/boot_id", check=False)

        wait_until(f"{node} has booted again", again, lambda boot: boot not in ("", before), timeout=BOOT_S)
        wait_until(f"{node} is ready again", self.whole, timeout=BOOT_S, why=lambda: self.lab("status"))


@contextmanager
def running_machines(product: Product, engine: str, *options: str) -> Iterator[MachineLab]:
    """Yield two virtual machines with an engine and further options of `lab up`."""
    lab = MachineLab(product, lab_name("e2e-vm"))
    try:
        if left_over(lab.name):
            lab.lab("down")
        lab.lab("up", "--hardware", "vm", "--nodes", "2", "--engine", engine, *options)
        version = lab.on("n2", "docker", "version", "--format", "{{.Server.Version}}")
        assert is_of(version, VERSIONS[engine])
        yield lab
    finally:
        lab.hang_up()
        lab.lab("down")
    assert not left_over(lab.name)
