# SPDX-License-Identifier: GPL-3.0-or-later
"""The program rdm-sriov: a Docker network plugin that gives containers virtual functions.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import socket
import sys
import threading
from typing import Any, Dict, List, Optional

from ansible_collections.rdm.provision.plugins.module_utils.base.zip_program import digest_of
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import (
    DEFAULT_SOCKET,
    DockerAPI,
    DockerProblem,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import PLUGIN_SOCKET
from ansible_collections.rdm.provision.rdm_sriov.driver import Driver
from ansible_collections.rdm.provision.rdm_sriov.rdma_namespace import (
    RdmaNamespaces,
)
from ansible_collections.rdm.provision.rdm_sriov.server import Server, say
from ansible_collections.rdm.provision.rdm_sriov.state import State
from ansible_collections.rdm.provision.rdm_sriov.vfs import (
    NodeVfs,
    VfProblem,
)

READY = "Ready to accept commands."
"""The log line once it answers; the same as the upstream plugin's."""
DEFAULT_STATE = "/var/lib/rdm-sriov"
# Short, since the engine itself may be waiting for our answer.
_ENGINE_TIMEOUT = 5.0


def main(
    arguments: Optional[List[str]] = None,
    vfs: Optional[NodeVfs] = None,
    rdma: Optional[RdmaNamespaces] = None,
) -> int:
    """Serve until SIGTERM or SIGINT.

    Args:
        arguments: of the command line; None: this process's.
        vfs: of the node; None: those in sysfs.
        rdma: their RDMA devices; None: those in sysfs.

    Returns:
        The exit status: 0 after a signal, 1 if it cannot serve.
    """
    parser = argparse.ArgumentParser(
        prog="rdm-sriov", description="Docker network plugin: gives each container a virtual function."
    )
    parser.add_argument("--socket", default=PLUGIN_SOCKET, help="where Docker finds it (%(default)s)")
    parser.add_argument("--state", default=DEFAULT_STATE, help="directory for what it keeps (%(default)s)")
    parser.add_argument("--engine", default=DEFAULT_SOCKET, help="the engine's socket (%(default)s)")
    options = parser.parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        lock = _lock(options.state)
        state = State(options.state)
        if state.lost:
            say(state.lost)
        name = os.path.basename(options.socket).rpartition(".")[0]
        driver = Driver(
            vfs or NodeVfs(),
            state,
            lambda: networks_of(options.engine, name),
            program=digest_of(sys.argv[0]),
            warn=say,
            rdma=rdma,
        )
        server = Server(options.socket, driver)
    except (VfProblem, OSError) as problem:
        print("rdm-sriov: {0}".format(problem), file=sys.stderr)
        return 1
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say(READY)
    notify_systemd()
    stop.wait()
    server.shutdown()
    server.server_close()
    os.close(lock)
    return 0


def networks_of(engine: str, driver: str) -> Dict[str, Dict[str, str]]:
    """Return the options of a driver's networks, by ID; `engine` is the path of its socket."""
    try:
        found: List[Dict[str, Any]] = DockerAPI(engine, timeout=_ENGINE_TIMEOUT).get("/networks")
    except DockerProblem as problem:
        say("the engine's networks cannot be queried: {0}".format(problem))
        return {}
    return {one["Id"]: one.get("Options") or {} for one in found if one.get("Driver") == driver}


def notify_systemd() -> None:
    """Notify systemd that the socket answers, so that it starts the engine (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
            there.connect("\0" + address[1:] if address.startswith("@") else address)
            there.send(b"READY=1")


def _lock(directory: str) -> int:
    """Take the lock that only one process can hold; return its file descriptor."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    descriptor = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise VfProblem(
            "another rdm-sriov keeps its state in {0}: there can be one at a time".format(directory)
        ) from error
    return descriptor


if __name__ == "__main__":
    sys.exit(main())
