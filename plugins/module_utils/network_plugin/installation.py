# SPDX-License-Identifier: GPL-3.0-or-later
"""The network plugin on a node: its program, its unit, and whether it runs.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import TEMPORARY
from ansible_collections.rdm.provision.plugins.module_utils.base.systemd import systemd_runs
from ansible_collections.rdm.provision.plugins.module_utils.base.zip_program import digest
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import (
    INFO,
    PluginProblem,
    ask,
    someone_listens,
)
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin import unit

PROGRAM = "/usr/local/lib/rdm/rdm-sriov"
STATE = "/var/lib/rdm-sriov"
SILENT = "does not answer"
FOREIGN = "is not rdm-sriov"
_KEPT = ("state.json", "state.json.new", "state.json.broken", "lock")  # .new: of a version before
_SYSTEMCTL_TIMEOUT = 120.0  # the longest that systemd itself waits for a start, and more
_POLL = 0.1
_LAST_LINES = 5


class InstallationProblem(Exception):  # noqa: N818  # one sentence for fail_json
    """What stands in the way, as one sentence."""


class Place(NamedTuple):
    """Where everything is.

    Attributes:
        program: file that runs.
        unit: file of the unit.
        socket: at which the plugin answers.
        state: directory of what it keeps.
    """

    program: str
    unit: str
    socket: str
    state: str


def facts(socket: str = "") -> Dict[str, Any]:
    """Return whose unit there is, whether its plugin runs, whether systemd does, and who serves a socket.

    Args:
        socket: at which the plugin is to answer; empty where none is wanted.
    """
    text = _text(unit.PATH)
    return {
        "socket": socket,
        "served_by": _server(socket, text or "") if socket else "",
        "systemd": systemd_runs(),
        "unit": text is not None,
        "cluster": unit.cluster_of(text or ""),
        "running": text is not None and bool(running(unit.socket_of(text))),
    }


def _server(socket: str, text: str) -> str:
    """Return who serves a socket, "rdm-sriov" or "another"; "" for nobody.

    Args:
        socket: its path.
        text: of the unit; "" for none.
    """
    if running(socket):
        return "rdm-sriov"
    if not someone_listens(socket):
        return ""
    # One that hangs is ours still.
    return "rdm-sriov" if unit.socket_of(text) == socket and active() else "another"


def running(socket: str) -> str:
    """Return the digest of the program that answers at a socket; "" when none of ours does."""
    try:
        return str(ask(socket, INFO, {}).get("Program") or "")
    except PluginProblem:
        return ""


def _served(socket: str) -> str:
    """Return what answers at a socket, as a sentence goes on that begins with it."""
    program = running(socket)
    if program:
        return "runs " + program
    return FOREIGN if someone_listens(socket) else SILENT


def observe(watch: Mapping[str, str]) -> Dict[str, str]:
    """Return how a plugin is found, as text that is equal when nothing has changed.

    Args:
        watch: `program`, `socket` and `state`, as in :class:`Place`; empty where none of ours is wanted.
    """
    if not watch:
        return {}
    place = Place(watch["program"], unit.PATH, watch["socket"], watch["state"])
    return {
        place.program: _digest(place.program),
        place.unit: _digest(place.unit),
        "the unit " + unit.NAME: "enabled" if enabled(place.unit) else "not enabled",
        "the plugin at " + place.socket: _served(place.socket),
        os.path.join(place.state, "state.json"): _there(os.path.join(place.state, "state.json")),
    }


def enabled(path: str) -> bool:
    """Return whether the unit starts with the node and with the engine."""
    folder, name = os.path.split(path)
    links = [os.path.join(folder, target + ".wants", name) for target in unit.WANTED_BY]
    return all(map(os.path.lexists, links))


def refuse_foreign(place: Place, cluster: str) -> None:
    """Raise when the unit is not the cluster's."""
    text = _text(place.unit)
    if text is None:
        return
    owner = unit.cluster_of(text)
    if owner != cluster:
        raise InstallationProblem(
            "{0} is {1}: {2}".format(
                place.unit,
                "of the cluster " + owner if owner else "not ours",
                "leave the plugin to it (sriov_enabled: false)" if owner else "move it away",
            )
        )


def differs(path: str, wanted: Optional[bytes]) -> bool:
    """Return whether a file holds something else; None means that there shall be none."""
    try:
        with open(path, "rb") as file:
            return file.read() != wanted
    except FileNotFoundError:
        return wanted is not None


def active() -> bool:
    """Return whether systemd runs the unit."""
    return _systemctl("is-active", "--quiet", unit.NAME).returncode == 0


def control(*words: str) -> None:
    """Tell systemd something.

    Raises:
        InstallationProblem: it does not do it.
    """
    done = _systemctl(*words)
    if done.returncode:
        raise InstallationProblem(
            "systemctl {0}: {1}{2}".format(" ".join(words), " ".join(done.stdout.split()), _words())
        )


def wait(place: Place, wanted: str, timeout: float) -> None:
    """Return when the wanted program answers.

    Args:
        place: where.
        wanted: its digest.
        timeout: seconds.

    Raises:
        InstallationProblem: it does not.
    """
    deadline = time.monotonic() + timeout
    while running(place.socket) != wanted:
        if time.monotonic() > deadline:
            raise InstallationProblem(
                "{0} does not answer at {1} after {2:g} s{3}".format(
                    unit.NAME, place.socket, timeout, _words()
                )
            )
        time.sleep(_POLL)


def remove(place: Place) -> List[str]:
    """Take away what was installed and what the plugin has kept; return the paths that went."""
    gone = installed(place)
    for path in gone:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    for directory in (os.path.dirname(place.program), place.state):
        with contextlib.suppress(OSError):  # not empty, or not there
            os.rmdir(directory)
    return gone


def installed(place: Place) -> List[str]:
    """Return what of the plugin is there."""
    names = os.listdir(place.state) if os.path.isdir(place.state) else []
    unfinished = sorted(name for name in names if name.startswith(TEMPORARY))
    kept = [os.path.join(place.state, name) for name in [*_KEPT, *unfinished]]
    return [path for path in [place.unit, place.program, *kept] if os.path.lexists(path)]


def _systemctl(*words: str) -> "subprocess.CompletedProcess[str]":
    return _run(["systemctl", *words])


def _words() -> str:
    """Return what the plugin said last, as an appendix to a sentence."""
    # Its own words: with --unit come systemd's about it, which would be most of the last ones.
    of_it = "_SYSTEMD_UNIT=" + unit.NAME
    output = _run(["journalctl", of_it, "--lines", str(_LAST_LINES), "--output", "cat"])
    lines = [line.strip() for line in output.stdout.splitlines()] if output.returncode == 0 else []
    return "; its last words: " + " | ".join(filter(None, lines)) if any(lines) else ""


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


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return digest(file.read())
    except OSError:
        return "missing"


def _there(path: str) -> str:
    return "there" if os.path.exists(path) else "missing"
