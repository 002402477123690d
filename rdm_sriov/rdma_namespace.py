# SPDX-License-Identifier: GPL-3.0-or-later
"""Moves a VF's RDMA device to its container's network namespace, in RDMA's mode exclusive.

In the mode shared, the kernel's default, a container can open the RDMA device of its VF in any
namespace. In the mode exclusive it can open only the devices in its own namespace. When a namespace ends, the
kernel returns its RDMA devices to the node.

The kernel removes a device that moves from all its users. IPoIB is one of them, so an InfiniBand container
would lose the interface that it should get.

Docker Engine 28 and newer create a container's namespace before the last call (Join), older ones after it.
For these a thread waits for the namespace, and a container may run for some milliseconds without its device.

Sources: rdma-dev(8), rdma-system(8); the kernel's drivers/infiniband/core/device.c (ib_device_set_netns_put,
rdma_dev_exit_net).

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Callable, List, Sequence

from ansible_collections.rdm.provision.plugins.module_utils.hardware.rdma import SHARED
from ansible_collections.rdm.provision.plugins.module_utils.hardware.sysfs_files import entries, link, read
from ansible_collections.rdm.provision.rdm_sriov.vfs import (
    VfProblem,
    printed,
)

_CLASS = "class/infiniband"
_TIMEOUT_S = 60.0
_POLL_S = 0.01


def to_move(exclusive: bool, ethernet: bool, key: str, here: Sequence[str], needed: bool) -> str:
    """Return the RDMA device that has to move with a VF's interface; "" for none.

    Args:
        exclusive: whether RDMA is in that mode.
        ethernet: whether the VF is Ethernet rather than InfiniBand.
        key: of the VF.
        here: the VF's RDMA devices in the node's network namespace.
        needed: whether the container was created with this VF's device.

    Raises:
        VfProblem: the container needs the device, and cannot get it.
    """
    if not exclusive:
        return ""
    if not ethernet:
        if needed:
            raise VfProblem(
                "RDMA devices are in the mode exclusive, and the kernel would take the interface of {0} away "
                "when its InfiniBand device moves to a container: {1}".format(key, SHARED)
            )
        return ""
    if needed and not here:
        raise VfProblem(
            "the RDMA device of {0}, with which this container was made, is not in the node's network "
            "namespace: another one has it, or its driver is not loaded".format(key)
        )
    return here[0] if here else ""


class RdmaNamespaces:
    """Moves the RDMA devices of this node.

    Args:
        root: where sysfs is.
        names: the directory of named network namespaces, for the command rdma.
        warn: writes a line to the log.
    """

    def __init__(
        self, root: str = "/sys", names: str = "/run/netns", warn: Callable[[str], None] = lambda _: None
    ) -> None:
        self._root = root
        self._names = names
        self._warn = warn
        # Two devices that move at once could swap their character devices.
        self._one = threading.Lock()

    def check(self, key: str, ethernet: bool, needed: bool) -> str:
        """Return the RDMA device that will have to move; "" for none: see :func:`to_move`."""
        exclusive = read(self._root, "module/ib_core/parameters/netns_mode") == "N"
        return to_move(exclusive, ethernet, key, self._devices(key) if exclusive else [], needed)

    def lend(self, key: str, ethernet: bool, namespace: str) -> None:
        """Move a VF's RDMA device to its interface's new namespace.

        Args:
            key: of the VF.
            ethernet: whether it is Ethernet.
            namespace: the file of a container's network namespace, which may be mounted there later.

        Raises:
            VfProblem: it failed. If the namespace does not exist yet, a later failure goes to the log.
        """
        device = self.check(key, ethernet, needed=False)
        if not device:
            return
        if _is_namespace(namespace):
            self._move(device, namespace)
        else:
            threading.Thread(target=self._follow, args=(device, namespace), daemon=True).start()

    def _follow(self, device: str, namespace: str) -> None:
        until = time.monotonic() + _TIMEOUT_S
        while not _is_namespace(namespace):
            if time.monotonic() > until:
                self._warn(
                    "the RDMA device {0} stays here: within {1:g} s there was no namespace {2}".format(
                        device, _TIMEOUT_S, namespace
                    )
                )
                return
            time.sleep(_POLL_S)
        try:
            self._move(device, namespace)
        except VfProblem as problem:
            self._warn(str(problem))

    def _move(self, device: str, namespace: str) -> None:
        # Older versions of the command accept only a name.
        name = "rdm-sriov-" + device
        path = os.path.join(self._names, name)
        with self._one:
            before = self._programs(device)
            try:
                os.makedirs(self._names, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                os.symlink(namespace, path)
                printed("rdma", ["dev", "set", device, "netns", name])
            except (OSError, VfProblem) as problem:
                raise VfProblem(
                    "the RDMA device {0} cannot move to its container, as the mode exclusive requires: {1}. "
                    "Without it: {2}".format(device, problem, SHARED)
                ) from problem
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            after = self._programs(device)
        if after != before:
            raise VfProblem(
                "the RDMA device {0} is {1} for programs since it moved, and was {2}, which its container "
                "was made with: start it again, or let rdm-provision up recreate it".format(
                    device, ", ".join(after) or "nothing", ", ".join(before) or "nothing"
                )
            )

    def _devices(self, key: str) -> List[str]:
        return [one for one in entries(self._root, _CLASS) if link(self._root, _CLASS, one, "device") == key]

    def _programs(self, device: str) -> List[str]:
        """Return the character devices of an RDMA device, which are visible in every namespace."""
        verbs = "class/infiniband_verbs"
        return [one for one in entries(self._root, verbs) if read(self._root, verbs, one, "ibdev") == device]


def _is_namespace(path: str) -> bool:
    """Return whether a file is a namespace: the engine creates an empty file and then mounts one on it."""
    try:
        return os.stat(path).st_dev == os.stat("/proc/self/ns/net").st_dev
    except OSError:
        return False
