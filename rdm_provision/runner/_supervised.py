"""Become ansible-playbook, and see to it that nothing of it outlives its run. Run as a script by :mod:`run`.

Were it not for this, a killed ``rdm-provision`` would leave ansible-playbook behind, changing the cluster
while the next run already works on it; and a killed ansible-playbook its workers, some of them for ever. The
process that becomes ansible-playbook is interrupted when its parent dies. A watcher beside it, in a session
of its own, waits for its end, and then ends the workers that are left.
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
"""Seconds that ansible-playbook has to stop by itself when its parent is dead, before it is killed."""
_WORKERS_S = 1.0
"""Seconds that workers have to end by themselves when ansible-playbook has gone."""
_POLL_S = 0.2


def main() -> None:
    """Tie this process to its parent, share its lock, set the watcher up, and become the program."""
    parent = int(os.environ.pop("RDM_PARENT"))
    folder = os.environ.pop("RDM_FOLDER")
    home = os.environ.pop("RDM_LOCKED", "")
    sys.path.insert(0, os.environ.pop("RDM_COLLECTIONS"))
    from ansible_collections.rdm.provision.plugins.plugin_utils.controller import cluster_lock

    # A background job ignores Ctrl-C, but this is how we are told to stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
    run, playbook = cluster_lock.Process.of(parent), cluster_lock.Process.of(os.getpid())
    if home:
        with contextlib.suppress(OSError):
            cluster_lock.join(Path(home))
    # All of this was for this parent, if it still exists.
    if os.getppid() != parent:
        sys.exit("the process that started this is gone")
    reader, mark = os.pipe()
    if os.fork() == 0:
        _watch(run, playbook, reader, folder)
    # Workers inherit it; programs that they start do not.
    os.set_inheritable(mark, True)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606  # a shell is what we do not want


def _watch(run: Process, playbook: Process, reader: int, folder: str) -> NoReturn:
    """Wait for the end of ansible-playbook, or of the run, and end the processes that still have the pipe."""
    from ansible_collections.rdm.provision.plugins.plugin_utils.controller import cluster_lock

    try:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        _keep_only(reader)
        os.chdir("/")
        while playbook.alive and run.alive:
            time.sleep(_POLL_S)
        # When the run is dead, ansible-playbook was interrupted.
        deadline = time.monotonic() + _GRACE_S
        while playbook.alive:
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(playbook.pid, signal.SIGKILL)
            time.sleep(_POLL_S)
        # A readable pipe means that nobody else holds its other end.
        if not select.select([reader], [], [], _WORKERS_S)[0]:
            cluster_lock.end(lambda: cluster_lock.having(reader, locked=False))
        if not run.alive:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def _keep_only(reader: int) -> None:
    """Close all other files: the lock is not to be held, and who reads the terminal waits for its end."""
    null = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(null, file)
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in (0, 1, 2, reader):
            # The listing was read through one of them.
            with contextlib.suppress(OSError):
                os.close(int(entry.name))


if __name__ == "__main__":
    main()
