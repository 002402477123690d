"""A lab whose nodes are virtual machines, and how to reach into them."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass
from typing import Any

from tests.e2e.product import Lab, wait_until

# Without KVM a machine's minute is one of a whole core, which others may use.
BOOT_S = 900


@dataclass(frozen=True)
class MachineLab(Lab):
    """The same lab; its nodes are behind ssh, and not containers of this machine's engine."""

    def on(self, node: str, *argv: str, check: bool = True) -> str:
        """Run a program on a node, as root, and return what it wrote."""
        done = self._run(node, *argv)
        assert not check or done.returncode == 0, f"{shlex.join(argv)} on {node}: {done.stdout}{done.stderr}"
        return done.stdout

    def refusal(self, node: str, *argv: str) -> str:
        """Run a program on a node, as root, that is to fail; return what it complained of."""
        done = self._run(node, *argv)
        assert done.returncode, f"{shlex.join(argv)} on {node} was not refused: {done.stdout}"
        return done.stderr

    def hang_up(self) -> None:
        """End the connections to nodes that go: the next lab's have the same names."""
        for path in self.product.directory.glob("*.ssh"):
            ssh = ["ssh", "-o", f"ControlPath={path}", "-O", "exit", path.stem]
            subprocess.run(ssh, check=False, capture_output=True, timeout=60)

    def _run(self, node: str, *argv: str) -> subprocess.CompletedProcess[str]:
        connection = (
            *("-F", str(self.inventory / ".rdm/lab/ssh_config")),
            # A login costs a second where every instruction is translated.
            *("-o", "ControlMaster=auto", "-o", "ControlPersist=60"),
            *("-o", f"ControlPath={self.product.directory}/{node}.ssh"),
            # Of a machine that reboots.
            *("-o", "ConnectTimeout=60", "-o", "ServerAliveInterval=20"),
        )
        return subprocess.run(
            ["ssh", *connection, node, "--", "sudo", shlex.join(argv)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def inside(self, node: str, *argv: str, name: str = "rdm", check: bool = True) -> str:
        """Run a program in a container of a node."""
        return self.on(node, "docker", "exec", name, *argv, check=check)

    def reaches(self, node: str, address: str, *, name: str = "rdm") -> bool:
        """Whether a container gets answers from an address."""
        ping = ["ping", "-c", "1", "-W", "2", address]
        return ", 0% packet loss" in self.inside(node, *ping, name=name, check=False)

    def functions(self, node: str) -> list[dict[str, Any]]:
        """Return what the kernel says of the virtual functions of a node's card."""
        (card,) = json.loads(self.on(node, "ip", "-details", "-json", "link", "show", "ib0"))
        return list(card.get("vfinfo_list") or [])

    def function(self, node: str, name: str = "rdm") -> dict[str, Any]:
        """Return the virtual function that a container of a node has, by its interface's hardware address."""
        shown = self.on(node, "nsenter", "-n", "-t", self.pid(node, name), "ip", "-json", "link")
        addresses = {link["address"] for link in json.loads(shown)}
        (found,) = [one for one in self.functions(node) if one["address"] in addresses]
        return found

    def pid(self, node: str, name: str = "rdm") -> str:
        """Return the process id, on the node, of a container's first process."""
        return self.on(node, "docker", "inspect", "--format", "{{.State.Pid}}", name).strip()

    def reboot(self, node: str) -> None:
        """Reboot a node as its administrator does, and wait until it is ready again."""
        before = self.on(node, "cat", "/proc/sys/kernel/random/boot_id")
        self.on(node, "systemctl", "reboot", check=False)

        def again() -> str:
            return self.on(node, "cat", "/proc/sys/kernel/random/boot_id", check=False)

        wait_until(lambda: again() not in ("", before), f"{node} has booted again", BOOT_S, again)
        wait_until(self.whole, f"{node} is ready again", BOOT_S, lambda: self.lab("status"))
