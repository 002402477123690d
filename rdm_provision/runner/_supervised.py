"""Become ansible-playbook, and let none of its processes outlive its run. Run as a script by :mod:`run`.

Without this, a killed ``rdm-provision`` would leave an ansible-playbook that changes the cluster while the
next run works on it; and a killed ansible-playbook would leave workers, some of them for ever. The process
that becomes ansible-playbook is interrupted when its parent dies. A supervisor in a session of its own waits
for its end, and then ends the remaining workers.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from ansible_collections.rdm.provision.plugins.plugin_utils.controller.cluster_lock import Process

_PR_SET_PDEATHSIG = 1
_GRACE_S = 10.0
"""Seconds between the parent's death and killing ansible-playbook."""
_WORKERS_S = 1.0
"""Seconds between the end of ansible-playbook and ending its workers."""
_POLL_S = 0.2


def main() -> None:
    """Tie this process to its parent, share its lock, start the supervisor, and become the program."""
    parent = int(os.environ.pop("RDM_PARENT"))
    folder = os.environ.pop("RDM_FOLDER")
    home = os.environ.pop("RDM_LOCKED", "")
    sys.path.insert(0, os.environ.pop("RDM_COLLECTIONS"))
    from ansible_collections.rdm.provision.plugins.plugin_utils.controller import cluster_lock

    # A background job ignores SIGINT, but that is how the run stops us.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
    run, playbook = cluster_lock.Process.of(parent), cluster_lock.Process.of(os.getpid())
    if home:
        with contextlib.suppress(OSError):
            cluster_lock.join(Path(home))
    # The parent may have died before the death signal was set.
    if os.getppid() != parent:
        sys.exit("the process that started this is gone")
    reader, mark = os.pipe()
    if os.fork() == 0:
        _watch(run, playbook, reader, folder)
    # Workers inherit it; programs that they start do not.
    os.set_inheritable(mark, True)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606  # a shell is what we do not want


def _watch(run: Process, playbook: Process, reader: int, folder: str) -> NoReturn:
    """Wait for the end of ansible-playbook, or of the run, and end the processes that hold the pipe."""
    from ansible_collections.rdm.provision.plugins.plugin_utils.controller import cluster_lock

    try:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        _keep_only(reader)
        os.chdir("/")
        while playbook.alive and run.alive:
            time.sleep(_POLL_S)
        # The run is dead, and the kernel has interrupted ansible-playbook.
        deadline = time.monotonic() + _GRACE_S
        while playbook.alive:
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(playbook.pid, signal.SIGKILL)
            time.sleep(_POLL_S)
        # The pipe becomes readable when nobody holds its other end any more.
        if not select.select([reader], [], [], _WORKERS_S)[0]:
            cluster_lock.end(lambda: cluster_lock.having(reader, locked=False))
        if not run.alive:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def _keep_only(reader: int) -> None:
    """Close all other files: the lock must not be held, and readers of our output wait for its end."""
    null = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(null, file)
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in (0, 1, 2, reader):
            # One of them was the descriptor of this listing.
            with contextlib.suppress(OSError):
                os.close(int(entry.name))


if __name__ == "__main__":
    main()
