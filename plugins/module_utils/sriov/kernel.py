# SPDX-License-Identifier: GPL-3.0-or-later
"""Applies the decided changes to physical functions, and checks that they took effect.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import errno
import os
import time
from typing import Callable, Collection, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.base.iproute2 import IpMissing, iproute2
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.sriov.decision import (
    DesiredPf,
    Step,
    next_steps,
    problems,
)
from ansible_collections.rdm.provision.plugins.module_utils.sriov.observed_vfs import (
    PCI_DEVICES,
    Addresses,
    Links,
    Pf,
    host_addresses,
    read_pf,
    vf_links,
)

SETTLE_S = 30.0
"""How long to wait for drivers and interfaces of new VFs: udev may have to load a module first."""

_POLL_S = 0.1
_ROUNDS = 4  # the number, the settings, a driver that was late, and the final check
_HINTS = {
    errno.EIO: "SR-IOV is off in the card's firmware or in the BIOS",
    errno.ENOENT: "it has vanished, or its driver has no such setting",
    errno.ENODEV: "it has vanished, or no driver takes it",
    errno.EROFS: "sysfs is mounted read-only here",
    errno.EACCES: "this needs root",
    errno.EPERM: "this needs root",
    errno.ENOSPC: "the card or its bus has no room for so many",
}


class Kernel:
    """The kernel of this node."""

    def __init__(self, root: str = "/sys", settle_s: float = SETTLE_S) -> None:
        self.root = root
        self._settle_s = settle_s

    def read(self, pf: str) -> Pf:
        """Return a PF, by interface or PCI address.

        Raises:
            NodeError: there is none.
        """
        return read_pf(pf, self.root, self.links(), self.addresses())

    def links(self) -> Links:
        """Return the VFs in `ip link show`."""
        return vf_links()

    def addresses(self) -> Addresses:
        """Return the addresses of the node's interfaces."""
        return host_addresses()

    def write(self, path: str, text: str) -> None:
        """Write to a sysfs file; raise OSError if the kernel refuses."""
        with open(os.path.join(self.root, path), "w", encoding="ascii") as file:
            file.write(text)

    def ip(self, words: Sequence[str]) -> str:
        """Run `ip`; return its error message, empty on success.

        Raises:
            IpMissing: there is no such command.
        """
        done = iproute2("ip", *words)
        output = " ".join(done.stderr.decode("utf-8", "replace").split())
        return (output or "status {0}".format(done.returncode)) if done.returncode else ""

    def do(self, step: Step) -> None:
        """Make one change.

        Raises:
            NodeError: the kernel refuses.
        """
        if step.ip:
            try:
                refused = self.ip(step.ip)
            except IpMissing as missing:
                refused = str(missing)
        else:
            refused = self._write(step)
        if refused:
            raise NodeError("cannot {0}: {1}".format(step.says, refused))

    def settle(self, pf: str, held: Collection[int] = ()) -> None:
        """Wait until the VFs of a PF have their drivers and interfaces, or until settle_s is over.

        Args:
            pf: the PF.
            held: numbers of the VFs in containers.
        """

        def stable() -> bool:
            found = self.read(pf)
            ready = found.autoprobe is False or all(
                vf.driver and (vf.interface or vf.number in held) for vf in found.there
            )
            return found.whole and ready

        self._until(stable)

    def _write(self, step: Step) -> str:
        try:
            self.write(step.path, step.text)
        except OSError as error:
            hint = _HINTS.get(error.errno or 0, "")
            return (error.strerror or str(error)) + (" ({0})".format(hint) if hint else "")
        if not step.path.endswith("/drivers_probe"):
            return ""
        bound = os.path.join(self.root, PCI_DEVICES, step.text, "driver")
        if self._until(lambda: os.path.exists(bound)):
            return ""
        return "no driver took it: load the one for it (modprobe mlx5_core, igbvf or iavf)"

    def _until(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition, for at most settle_s; return whether it holds."""
        until = time.monotonic() + self._settle_s
        while not condition():
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_S)
        return True


def evaluate(
    kernel: Kernel, wanted: Sequence[DesiredPf], ending: Optional[Mapping[str, int]] = None
) -> List[Tuple[Pf, DesiredPf]]:
    """Return the observed and desired state of each PF.

    Args:
        kernel: the node's.
        wanted: the desired states.
        ending: interface of a PF -> how many of its VFs are in containers that end before the work begins.

    Raises:
        NodeError: some PF cannot be changed; the text has all reasons.
    """
    pairs: List[Tuple[Pf, DesiredPf]] = []
    wrong: List[str] = []
    for one in wanted:
        try:
            found = kernel.read(one.pf)
        except NodeError as problem:
            wrong.append(str(problem))
            continue
        twice = [other for other, _ in pairs if other.pci == found.pci]
        wrong += ["{0} and {1} are one function: name it once".format(twice[0].name, one.pf)] if twice else []
        wrong += problems(found, one, int((ending or {}).get(found.name, 0)))
        pairs.append((found, one))
    if wrong:
        raise NodeError("; ".join(wrong))
    return pairs


def bring(kernel: Kernel, wanted: DesiredPf) -> bool:
    """Bring a PF into its desired state; return whether anything was changed.

    Raises:
        NodeError: it cannot be changed, or the kernel refuses.
    """
    done: List[Step] = []
    for _ in range(_ROUNDS):
        # Check before each round, since a container may have taken a VF meanwhile.
        ((found, _wanted),) = evaluate(kernel, [wanted])
        steps = next_steps(found, wanted)
        if not steps:
            return bool(done)
        if steps == done[-len(steps) :]:
            break
        for step in steps:
            kernel.do(step)
        done += steps
        kernel.settle(wanted.pf, {vf.number for vf in found.vfs if vf.holder})
    raise NodeError("the kernel let one {0}, and shows no effect".format(done[-1].says))
