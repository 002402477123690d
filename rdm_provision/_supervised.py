"""Become another program that stops when the process that started it dies. Run as a script by :mod:`run`.

Were it not for this, a killed ``rdm-provision`` would leave ansible-playbook behind, changing the cluster
while the next run already works on it. The lock named in ``RDM_RUN_LOCK`` is held for as long as the program
lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, take the lock, and become the program of the arguments."""
    parent = int(os.environ.pop("RDM_PARENT"))
    lock = os.environ.pop("RDM_RUN_LOCK", "")
    # A background job ignores Ctrl-C, but this is how we are told to stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
    if os.getppid() != parent:
        sys.exit("the process that started this is gone")
    if lock:
        with contextlib.suppress(OSError):
            file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            os.set_inheritable(file, True)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606  # a shell is what we do not want


if __name__ == "__main__":
    main()
