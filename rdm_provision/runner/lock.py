"""A run's lock of its cluster."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from types import ModuleType

from rdm_provision import environment
from rdm_provision.errors import ClusterBusyError


class Lock:
    """Only one run may change a cluster at a time; the kernel releases the lock when its holders die.

    Plain ansible-playbook takes the same lock. See ``plugins/plugin_utils/controller/cluster_lock.py``.
    """

    def __init__(self, home: Path, verb: str) -> None:
        """Take the lock of a cluster, after ending the remaining processes of a killed run.

        Args:
            home: the folder of the inventory.
            verb: what the run does, for the message to others.

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
        """Whether the lock is held; not if the folder cannot be written to."""
        return self._file is not None

    def release(self) -> None:
        """Release the lock. Does nothing the second time."""
        if self._file is not None:
            self._file = None
            _held.discard(self)
            cluster_lock_module().give_back(self._home)

    def forget(self) -> None:
        """Close the descriptor in a forked process: a caller's child is not part of the run."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def cluster_lock_module() -> ModuleType:
    """Return the collection's module ``cluster_lock``."""
    environment.make_importable()
    from ansible_collections.rdm.provision.plugins.plugin_utils.controller import cluster_lock

    return cluster_lock
