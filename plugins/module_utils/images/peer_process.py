# SPDX-License-Identifier: GPL-3.0-or-later
"""The process of a peer, which outlives the module that starts it, and the lock that it holds.

A lock names its process and a hash of its run's token, so that the next run can end what a killed one left.

This runs on nodes (Python 3.8 or newer, standard library).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import time
from typing import Any, Callable, Dict, Set, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.images.peer import Peer, Settings

START_S = 20
_PORT_S = 5
"""Seconds to wait for a port after the lease of a killed run's processes has expired."""
_STOP_S = 6
_KILLED_S = 4
TAKEN_OVER = "another run has taken it over"


def held(path: str) -> Any:
    """Return a locked file that lets its holder bring pieces to `path`; None if another process has the lock.

    Raises:
        OSError: the file system has no locks.
    """
    while True:
        file = open(path + ".lock", "a+", encoding="ascii")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:
            file.close()
            raise OSError(error.errno, error.strerror, file.name) from None
        # The previous holder may have removed this file meanwhile, and another process may hold a new one.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
                return file
        file.close()


def run_name(token: str) -> str:
    """Return the run's name in a lock: a hash of its token, which stays secret."""
    return hashlib.sha256(token.encode()).hexdigest()


def sign(lock: Any, run: str) -> None:
    """Write into a lock that this process holds it, and for which run: see `held_by`."""
    lock.truncate(0)
    lock.write("{0} {1}".format(os.getpid(), run))
    lock.flush()


def held_by(base: str) -> Tuple[str, str]:
    """Return the process and the run that hold the lock, or held it last; both are empty without a lock."""
    with contextlib.suppress(OSError), open(base + ".lock", encoding="ascii") as file:
        process, _, run = file.read().partition(" ")
        return process, run
    return "", ""


def start(base: str, settings: Settings, make: Callable[[], Peer], temporary: str = "") -> Dict[str, Any]:
    """Start a process that outlives this module, and return when it listens.

    Args:
        base: path prefix of its files.
        settings: of its peer.
        make: makes its peer.
        temporary: a file that the process removes when it ends.
    """
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        try:
            os.close(read_end)
            os.setsid()
            if os.fork() == 0:
                _be_daemon(base, settings, make, write_end, temporary)
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, encoding="utf-8") as output:
        text = output.read()
    if not text:
        raise NodeError("its process ended before it listened")
    answer: Dict[str, Any] = json.loads(text)
    if answer.get("problem"):
        raise NodeError(str(answer["problem"]))
    return answer


def _be_daemon(
    base: str, settings: Settings, make: Callable[[], Peer], write_end: int, temporary: str
) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(nothing, handle)
    for handle in map(int, os.listdir("/proc/self/fd")):
        if handle > 2 and handle != write_end:
            with contextlib.suppress(OSError):
                os.close(handle)
    os.umask(0o077)
    signal.setitimer(signal.ITIMER_REAL, START_S + settings.lease_s + _PORT_S)
    problem = ""
    lock = None
    try:
        lock = held(base)
        if lock is None:
            raise NodeError("another run brings this archive here")
        sign(lock, run_name(settings.token))
        with contextlib.suppress(OSError):
            os.unlink(base + ".result")
        wait_for_port(os.path.dirname(base), settings.port, settings.lease_s + _PORT_S)
        peer = make()
    except NodeError as error:
        problem = error.sentence
    except OSError as error:
        problem = os_problem(error)
    except OverflowError as error:  # a port
        problem = str(error)
    if problem:
        if lock is not None:
            with contextlib.suppress(OSError):
                os.unlink(base + ".lock")
        os.write(write_end, json.dumps({"problem": problem}).encode())
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGTERM, lambda _number, _frame: peer.end())
    os.write(write_end, json.dumps({"port": peer.port, "stored": peer.file.stored}).encode())
    os.close(write_end)
    peer.run()
    result = {"complete": not peer.missing and not peer.error, "error": peer.error, "trouble": peer.trouble}
    if temporary:
        os.unlink(temporary)
    with open(base + ".result", "w", encoding="utf-8") as file:
        json.dump(result, file)


def wait_for_port(directory: str, port: int, timeout: float) -> None:
    """Wait while a process of an earlier run, which ends by itself, listens on a port.

    Args:
        directory: with the locks of these processes.
        port: of any address.
        timeout: in seconds.
    """
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        sockets = listening(port)
        processes = [
            held_by(entry.path[:-5])[0] for entry in os.scandir(directory) if entry.name[-5:] == ".lock"
        ]
        if not sockets or not any(sockets & open_sockets(process) for process in processes):
            return
        time.sleep(0.1)


def listening(port: int) -> Set[str]:
    """Return the inodes of the sockets that listen on a port, by the kernel's tables: see proc(5)."""
    rows = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as file:
            rows += [line.split() for line in file]
    local = ":{0:04X}".format(port)
    return {row[9] for row in rows if row[1].endswith(local) and row[3] == "0A"}


def open_sockets(process: str) -> Set[str]:
    """Return the inodes of a process's sockets; none if it is gone."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc/{0}/fd".format(process)):
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry.path).partition("socket:[")[2].rstrip("]"))
    return found


def end_other(base: str, only: str = "") -> Any:
    """End the process that a run has left here, and return the lock that it held.

    The process saves the list of its pieces when it ends.

    Args:
        base: path prefix of its files.
        only: `run_name` of the run whose process may be ended; any run's by default.

    Raises:
        NodeError: it does not end, or another run has started one since.
        OSError: the file system has no locks.
    """
    until = time.monotonic() + _STOP_S
    text = ""
    while time.monotonic() < until + _KILLED_S:
        lock = held(base)
        if lock is not None:
            return lock
        text, run = held_by(base)
        if only and run not in ("", only):
            raise NodeError(TAKEN_OVER)
        if text.isdigit():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(text), signal.SIGTERM if time.monotonic() < until else signal.SIGKILL)
        time.sleep(0.1)
    raise NodeError("process {0} of an earlier run, which holds {1}.lock, does not end".format(text, base))


def os_problem(error: OSError) -> str:
    """Return what failed, with the name of the file."""
    where = "{0}: ".format(error.filename) if error.filename else ""
    return where + (error.strerror or str(error))
