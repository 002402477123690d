# SPDX-License-Identifier: GPL-3.0-or-later
"""Where rdma keeps its devices apart by network namespace: a function's goes where its interface goes.

In the mode shared, the kernel's default, a container opens the RDMA device of its function in whatever
namespace that is. In the mode exclusive it opens those of its own only. When a namespace dies, the kernel
gives its RDMA devices back to the node.

The kernel takes a device that moves from all who use it. IPoIB is one of these, so that the interface which
an InfiniBand container was to get would be gone.

Docker Engine 28 and newer make a container's namespace before the last call (Join), older ones after it:
there somebody waits for it, and a container may run for some milliseconds without its device.

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
from ansible_collections.rdm.provision.rdm_sriov.functions import (
    FunctionProblem,
    printed,
)

"""How a person leaves the mode exclusive."""
_CLASS = "class/infiniband"
_PATIENCE_S = 60.0
_LOOK_EVERY_S = 0.01


def to_move(exclusive: bool, ethernet: bool, key: str, here: Sequence[str], needed: bool) -> str:
    """Return the RDMA device that has to go where a function's interface goes; "" for none.

    Args:
        exclusive: whether rdma is in that mode.
        ethernet: whether the function is Ethernet, and not InfiniBand.
        key: of the function.
        here: the function's RDMA devices in the node's network namespace.
        needed: whether the container was made with this function's device.

    Raises:
        FunctionProblem: the container needs one, and cannot have it.
    """
    if not exclusive:
        return ""
    if not ethernet:
        if needed:
            raise FunctionProblem(
                "RDMA devices are in the mode exclusive, and the kernel would take the interface of {0} away "
                "when its InfiniBand device moves to a container: {1}".format(key, SHARED)
            )
        return ""
    if needed and not here:
        raise FunctionProblem(
            "the RDMA device of {0}, with which this container was made, is not in the node's network "
            "namespace: another one has it, or its driver is not loaded".format(key)
        )
    return here[0] if here else ""


class RdmaNamespaces:
    """Moves the RDMA devices of this node.

    Args:
        root: where sysfs is.
        names: where the command rdma looks for a network namespace by its name.
        warn: writes a line to the log.
    """

    def __init__(
        self, root: str = "/sys", names: str = "/run/netns", warn: Callable[[str], None] = lambda _: None
    ) -> None:
        self._root = root
        self._names = names
        self._warn = warn
        # Of two that move at once, each could get the other's character devices.
        self._one = threading.Lock()

    def check(self, key: str, ethernet: bool, needed: bool) -> str:
        """Return the RDMA device that will have to move; "" for none: see :func:`to_move`."""
        exclusive = read(self._root, "module/ib_core/parameters/netns_mode") == "N"
        return to_move(exclusive, ethernet, key, self._devices(key) if exclusive else [], needed)

    def lend(self, key: str, ethernet: bool, namespace: str) -> None:
        """Let a function's RDMA device go where its interface goes.

        Args:
            key: of the function.
            ethernet: whether it is Ethernet.
            namespace: a file that is a container's network namespace, or is going to be.

        Raises:
            FunctionProblem: it cannot; where the namespace is yet to be made, the log says it later.
        """
        device = self.check(key, ethernet, needed=False)
        if not device:
            return
        if _is_namespace(namespace):
            self._move(device, namespace)
        else:
            threading.Thread(target=self._follow, args=(device, namespace), daemon=True).start()

    def _follow(self, device: str, namespace: str) -> None:
        until = time.monotonic() + _PATIENCE_S
        while not _is_namespace(namespace):
            if time.monotonic() > until:
                self._warn(
                    "the RDMA device {0} stays here: within {1:g} s there was no namespace {2}".format(
                        device, _PATIENCE_S, namespace
                    )
                )
                return
            time.sleep(_LOOK_EVERY_S)
        try:
            self._move(device, namespace)
        except FunctionProblem as problem:
            self._warn(str(problem))

    def _move(self, device: str, namespace: str) -> None:
        # Older versions of the command take no path.
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
            except (OSError, FunctionProblem) as problem:
                raise FunctionProblem(
                    "the RDMA device {0} cannot move to its container, which the mode exclusive wants: {1}. "
                    "Without it: {2}".format(device, problem, SHARED)
                ) from problem
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            after = self._programs(device)
        if after != before:
            raise FunctionProblem(
                "the RDMA device {0} is {1} for programs since it moved, and was {2}, which its container "
                "was made with: start it again, or let rdm-provision up make it anew".format(
                    device, ", ".join(after) or "nothing", ", ".join(before) or "nothing"
                )
            )

    def _devices(self, key: str) -> List[str]:
        return [one for one in entries(self._root, _CLASS) if link(self._root, _CLASS, one, "device") == key]

    def _programs(self, device: str) -> List[str]:
        """Return the character devices of an RDMA device, which are shown in every namespace."""
        verbs = "class/infiniband_verbs"
        return [one for one in entries(self._root, verbs) if read(self._root, verbs, one, "ibdev") == device]


def _is_namespace(path: str) -> bool:
    """Return whether a file is a namespace: the engine makes an empty file first and mounts that on it."""
    try:
        return os.stat(path).st_dev == os.stat("/proc/self/ns/net").st_dev
    except OSError:
        return False
