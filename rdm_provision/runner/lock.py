"""The lock of a cluster, as a run holds it."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from types import ModuleType

from rdm_provision import environment
from rdm_provision.errors import ClusterBusyError

__all__ = ["Lock", "cluster_lock_module"]


class Lock:
    """Only one run may change a cluster at a time; the kernel lets go of the lock when its holders die.

    Plain ansible-playbook takes the same lock. See ``plugins/plugin_utils/controller/cluster_lock.py``.
    """

    def __init__(self, home: Path, verb: str) -> None:
        """Take the lock of a cluster, after ending what a killed run has left of itself.

        Args:
            home: the folder of the inventory.
            verb: for what, for whoever meets the lock.

        Raises:
            ClusterBusyError: another run holds it.
        """
        cluster_lock = cluster_lock_module()
        try:
            self._file: int | None = cluster_lock.take(home, f"rdm-provision {verb}")
        except cluster_lock.Busy as busy:
            raise ClusterBusyError(str(busy), hint=busy.hint) from None
        self._home = home
        _held.add(self)

    @property
    def held(self) -> bool:
        """Whether there is a lock: not where nothing can be written."""
        return self._file is not None

    def release(self) -> None:
        """Let go of the lock. Does nothing the second time."""
        if self._file is not None:
            self._file = None
            _held.discard(self)
            cluster_lock_module().give_back(self._home)

    def forget(self) -> None:
        """Close the descriptor in a process that was forked: what a caller forks is no part of the run."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def cluster_lock_module() -> ModuleType:
    """Return the collection's module."""
    environment.make_importable()
    from ansible_collections.rdm.provision.plugins.plugin_utils.controller import cluster_lock

    return cluster_lock
