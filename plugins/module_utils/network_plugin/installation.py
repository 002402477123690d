# SPDX-License-Identifier: GPL-3.0-or-later
"""The network plugin's installation on a node: its program, its unit, and whether it runs.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import TEMPORARY
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.systemd import systemd_runs
from ansible_collections.rdm.provision.plugins.module_utils.base.zip_program import digest_of
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import (
    INFO,
    PluginProblem,
    call_plugin,
    someone_listens,
)
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin import unit

PROGRAM = "/usr/local/lib/rdm/rdm-sriov"
STATE = "/var/lib/rdm-sriov"
SILENT = "does not answer"
FOREIGN = "is not rdm-sriov"
_KEPT = ("state.json", "state.json.new", "state.json.broken", "lock")  # .new: of an earlier version
_SYSTEMCTL_TIMEOUT = 120.0  # longer than systemd waits for a start
_POLL = 0.1
_LAST_LINES = 5


class Paths(NamedTuple):
    """The paths of an installation.

    Attributes:
        program: the program.
        unit: the unit file.
        socket: the plugin's socket.
        state: the directory of its state.
    """

    program: str
    unit: str
    socket: str
    state: str


def facts(socket: str = "") -> Dict[str, Any]:
    """Return the unit's owner, whether systemd runs, and what serves a socket.

    Args:
        socket: the desired plugin's; empty if none is desired.
    """
    text = _text(unit.PATH)
    return {
        "socket": socket,
        "served_by": _server(socket, text or "") if socket else "",
        "systemd": systemd_runs(),
        "unit": text is not None,
        "cluster": unit.cluster_of(text or ""),
    }


def _server(socket: str, text: str) -> str:
    """Return what serves a socket, "rdm-sriov" or "another"; "" for nothing.

    Args:
        socket: its path.
        text: the unit's; "" for none.
    """
    if running(socket):
        return "rdm-sriov"
    if not someone_listens(socket):
        return ""
    # Our plugin may hang.
    return "rdm-sriov" if unit.socket_of(text) == socket and active() else "another"


def running(socket: str) -> str:
    """Return the digest of our program that answers at a socket; "" if none does."""
    try:
        return str(call_plugin(socket, INFO, {}).get("Program") or "")
    except PluginProblem:
        return ""


def _served(socket: str) -> str:
    """Return what answers at a socket, as the end of a sentence that begins with the socket."""
    program = running(socket)
    if program:
        return "runs " + program
    return FOREIGN if someone_listens(socket) else SILENT


def observe(watch: Mapping[str, str]) -> Dict[str, str]:
    """Return a plugin's observed state, as text that is equal if nothing has changed.

    Args:
        watch: `program`, `socket` and `state`, as in :class:`Paths`; empty if none of ours is desired.
    """
    if not watch:
        return {}
    paths = Paths(watch["program"], unit.PATH, watch["socket"], watch["state"])
    return {
        paths.program: digest_of(paths.program) or "missing",
        paths.unit: digest_of(paths.unit) or "missing",
        "the unit " + unit.NAME: "enabled" if enabled(paths.unit) else "not enabled",
        "the plugin at " + paths.socket: _served(paths.socket),
        os.path.join(paths.state, "state.json"): _there(os.path.join(paths.state, "state.json")),
    }


def enabled(path: str) -> bool:
    """Return whether the unit starts with the node and with the engine."""
    folder, name = os.path.split(path)
    links = [os.path.join(folder, target + ".wants", name) for target in unit.WANTED_BY]
    return all(map(os.path.lexists, links))


def refuse_foreign(paths: Paths, cluster: str) -> None:
    """Raise when the unit is not the cluster's."""
    text = _text(paths.unit)
    if text is None:
        return
    owner = unit.cluster_of(text)
    if owner != cluster:
        raise NodeError(
            "{0} is {1}: {2}".format(
                paths.unit,
                "of the cluster " + owner if owner else "not ours",
                "leave the plugin to it (sriov_enabled: false)" if owner else "move it away",
            )
        )


def differs(path: str, wanted: Optional[bytes]) -> bool:
    """Return whether a file's content differs from the desired one; None: there should be no file."""
    try:
        with open(path, "rb") as file:
            return file.read() != wanted
    except FileNotFoundError:
        return wanted is not None


def active() -> bool:
    """Return whether systemd runs the unit."""
    return _systemctl("is-active", "--quiet", unit.NAME).returncode == 0


def control(*words: str) -> None:
    """Run systemctl.

    Raises:
        NodeError: it fails.
    """
    done = _systemctl(*words)
    if done.returncode:
        raise NodeError(
            "systemctl {0}: {1}{2}".format(" ".join(words), " ".join(done.stdout.split()), _words())
        )


def wait(paths: Paths, wanted: str, timeout: float) -> None:
    """Wait until the desired program answers.

    Args:
        paths: of the installation.
        wanted: its digest.
        timeout: seconds.

    Raises:
        NodeError: it does not.
    """
    deadline = time.monotonic() + timeout
    while running(paths.socket) != wanted:
        if time.monotonic() > deadline:
            raise NodeError(
                "{0} does not answer at {1} after {2:g} s{3}".format(
                    unit.NAME, paths.socket, timeout, _words()
                )
            )
        time.sleep(_POLL)


def remove(paths: Paths) -> List[str]:
    """Remove the plugin's files and its state; return the removed paths."""
    gone = installed(paths)
    for path in gone:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    for directory in (os.path.dirname(paths.program), paths.state):
        with contextlib.suppress(OSError):  # not empty, or not there
            os.rmdir(directory)
    return gone


def installed(paths: Paths) -> List[str]:
    """Return the existing files of the plugin."""
    names = os.listdir(paths.state) if os.path.isdir(paths.state) else []
    unfinished = sorted(name for name in names if name.startswith(TEMPORARY))
    kept = [os.path.join(paths.state, name) for name in [*_KEPT, *unfinished]]
    return [path for path in [paths.unit, paths.program, *kept] if os.path.lexists(path)]


def _systemctl(*words: str) -> "subprocess.CompletedProcess[str]":
    return _run(["systemctl", *words])


def _words() -> str:
    """Return the plugin's last output, to be appended to a sentence."""
    # Only the plugin's messages: --unit would add systemd's, and show few others.
    of_it = "_SYSTEMD_UNIT=" + unit.NAME
    output = _run(["journalctl", of_it, "--lines", str(_LAST_LINES), "--output", "cat"])
    lines = [line.strip() for line in output.stdout.splitlines()] if output.returncode == 0 else []
    return "; its last output: " + " | ".join(filter(None, lines)) if any(lines) else ""


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SYSTEMCTL_TIMEOUT,
            universal_newlines=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, str(error), "")


def _text(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _there(path: str) -> str:
    return "there" if os.path.exists(path) else "missing"
