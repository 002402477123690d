# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts, restarts, reconfigures and stops Slurm's daemons on a host, with systemd or without.

Running jobs survive all of this: slurmctld keeps its state on disk, and slurmd's steps are processes of their
own, which a new slurmd finds again (slurmctld(8), slurmd(8)).

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import pwd
import shutil
import signal
import socket
import time
from typing import Any, Callable, Dict, List, Mapping

from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.module_utils.base.host import read_text
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.programs import (
    ProgramProblem,
    find_program,
    run_program,
)
from ansible_collections.rdm.provision.plugins.module_utils.base.systemd import systemd_runs
from ansible_collections.rdm.provision.plugins.module_utils.slurm import host_facts
from ansible_collections.rdm.provision.plugins.module_utils.slurm.distributions import DISTRIBUTIONS

STATE = "/var/lib/slurm/slurmctld"
STOP_S = 60.0
POLL_S = 0.1
RUN_S = 120.0
CONNECT_S = 5.0

ORDER = ("munge", "mariadb", "slurmdbd", "slurmctld", "slurmd", "slurmrestd")
KEY_BYTES = 32
LOGS = {
    "munge": "/var/log/munge/munged.log",
    "mariadb": next(
        (
            one.mariadb_log
            for one in DISTRIBUTIONS.values()
            if os.path.isdir(os.path.dirname(one.mariadb_log))
        ),
        DISTRIBUTIONS["apt"].mariadb_log,
    ),
    "slurmdbd": "/var/log/slurm/slurmdbd.log",
    "slurmctld": "/var/log/slurm/slurmctld.log",
    "slurmd": "/var/log/slurm/slurmd.log",
}
"""Log files of the daemons that write one. slurmrestd writes to the journal."""


class Services:
    """The services of a host, controlled by its init system.

    Args:
        manager: the host's package manager; empty to detect it.
        proc: where procfs is.
    """

    def __init__(self, manager: str = "", proc: str = "/proc") -> None:
        self.systemd = systemd_runs()
        distribution = DISTRIBUTIONS.get(manager or host_facts.package_manager(), DISTRIBUTIONS["apt"])
        # Other processes have the name of their service.
        self._processes = {"munge": (host_facts.MUNGED,), "mariadb": distribution.mariadb_processes}
        self._proc = proc

    def pids(self, name: str) -> List[int]:
        """Return the process ids of a service, without those in containers."""
        found = host_facts.own_processes(self._processes.get(name, (name,)), self._proc)
        return [pid for pids in found.values() for pid in pids]

    def enabled(self, name: str) -> bool:
        """Return whether it starts when the host boots."""
        if self.systemd:
            try:
                run_program(["systemctl", "is-enabled", "--quiet", name], RUN_S)
            except ProgramProblem:
                return False
            return True
        return bool(glob.glob("/etc/rc3.d/S??" + name))

    def enable(self, name: str, on: bool) -> None:
        """Enable or disable its start when the host boots."""
        if self.systemd:
            run_program(["systemctl", "enable" if on else "disable", "--quiet", name], RUN_S)
        else:
            run_program([find_program("update-rc.d"), name, "enable" if on else "disable"], RUN_S)

    def start(self, name: str) -> None:
        """Start it."""
        if self.systemd:
            run_program(["systemctl", "daemon-reload"], RUN_S)
            run_program(["systemctl", "start", name], RUN_S)
        else:
            run_program(["/etc/init.d/" + name, "start"], RUN_S)

    def restart(self, name: str) -> None:
        """Stop it, and start it."""
        self.stop(name)
        self.start(name)

    def stop(self, name: str) -> None:
        """Stop it, and wait until it is gone."""
        if self.systemd:
            run_program(["systemctl", "stop", name], RUN_S)
            return
        deadline = time.monotonic() + STOP_S
        for pid in self.pids(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        while self.pids(name):
            if time.monotonic() > deadline:
                raise NodeError(
                    "{0} does not end within {1:g} s: see {2}".format(name, STOP_S, LOGS.get(name, "its log"))
                )
            time.sleep(POLL_S)


def answers(name: str, address: str = "") -> bool:
    """Return whether a service answers.

    Args:
        name: of the service.
        address: HOST:PORT where it has to listen; empty to query it with its own tool.
    """
    if address:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except OSError:
            return False
        return True
    queries: Dict[str, List[str]] = {
        "munge": [find_program("munge"), "-n"],
        "mariadb": [find_program("mariadb", "mysql"), "--batch", "--execute=SELECT 1"],
        "slurmdbd": [find_program("sacctmgr"), "--noheader", "show", "cluster"],
        "slurmctld": [find_program("scontrol"), "ping"],
    }
    if name not in queries:
        return True
    try:
        output = run_program(queries[name], RUN_S)
    except ProgramProblem:
        return False
    return name != "slurmctld" or "UP" in output


def last_words(name: str) -> str:
    """Return the last line of a service's log; empty if there is none."""
    if name in LOGS:
        output = read_text(LOGS[name])
    else:
        try:
            output = run_program(
                ["journalctl", "--quiet", "--unit", name, "--lines", "1", "--output", "cat"], RUN_S
            )
        except ProgramProblem:
            return ""
    return (output.strip().splitlines() or [""])[-1].strip()


def wait_for(name: str, services: Services, seconds: float, address: str = "") -> None:
    """Wait until a service runs and answers, at an address as in `answers`.

    Raises:
        NodeError: it timed out; the text has the last line of its log.
    """
    deadline = time.monotonic() + seconds
    while not (services.pids(name) and answers(name, address)):
        if time.monotonic() > deadline:
            output = last_words(name)
            words = "; its log ends with: {0}".format(output) if output else ""
            raise NodeError(
                "{0} does not answer {1:g} s after it was started{2}".format(name, seconds, words)
            )
        time.sleep(POLL_S)


# --- accounting ------------------------------------------------------------------------------------------


def _sql(statement: str) -> str:
    return run_program(
        [find_program("mariadb", "mysql"), "--batch", "--skip-column-names", "--execute=" + statement], RUN_S
    )


def database_missing(name: str) -> bool:
    """Return whether the database, or slurm's privileges on it, are missing.

    Args:
        name: the database; only letters, digits and ``_``, since the statement does not quote it.
    """
    there = name in _sql("SHOW DATABASES LIKE '{0}'".format(name)).split()
    known = _sql("SELECT COUNT(*) FROM mysql.db WHERE User = 'slurm' AND Db = '{0}'".format(name))  # noqa: S608
    return not there or known.strip() == "0"


def make_database(name: str) -> None:
    """Create the database, with all privileges for the system's user slurm, without a password."""
    _sql("CREATE DATABASE IF NOT EXISTS {0}".format(name))
    _sql("CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED VIA unix_socket")
    _sql("GRANT ALL ON {0}.* TO 'slurm'@'localhost'".format(name))


def remove_database(name: str) -> None:
    """Remove the database, with the records of past jobs, and slurm's privileges on it."""
    _sql("DROP DATABASE IF EXISTS {0}".format(name))
    _sql("REVOKE ALL PRIVILEGES ON {0}.* FROM 'slurm'@'localhost'".format(name))


def accounting(*argv: str) -> List[List[str]]:
    """Return the rows that `sacctmgr show` prints."""
    output = run_program([find_program("sacctmgr"), "--noheader", "--parsable2", "show", *argv], RUN_S)
    return [line.split("|") for line in output.splitlines() if line]


def missing_accounts(cluster: str, accounts: Mapping[str, Any]) -> List[List[str]]:
    """Return the arguments of `sacctmgr add` for each missing entry."""
    todo = []
    if [cluster] not in accounting("cluster", "format=cluster"):
        todo.append(["cluster", cluster])
    known = accounting("association", "cluster=" + cluster, "format=account,user")
    for account, users in accounts.items():
        if [account, ""] not in known:
            todo.append(["account", account, "cluster=" + cluster])
        for user in users:
            if [account, user] not in known:
                todo.append(["user", user, "account=" + account, "cluster=" + cluster])
    return todo


# --- all of them -----------------------------------------------------------------------------------------


class Change:
    """The changes that were made, or in check mode would be made."""

    def __init__(self, check: bool) -> None:
        self.check = check
        self.actions: List[str] = []

    def do(self, what: str, action: Callable[..., object], *arguments: Any) -> None:
        """Make a change, and record it."""
        self.actions.append(what)
        if not self.check:
            action(*arguments)


def present(options: Mapping[str, Any], check: bool) -> List[str]:
    """Bring the daemons of this host to their desired state; return the changes.

    Raises:
        NodeError: a daemon does not start.
        ProgramProblem: a program fails.
    """
    services = Services()
    change = Change(check)
    was = host_facts.applied()
    for name in ORDER:
        wanted = options["daemons"].get(name)
        if wanted is None:
            # The others are removed with the cluster.
            if name == "slurmrestd" and name in was:
                _end(services, change, name)
                if not check:
                    del was[name]
                    remember(was)
            continue
        if name == "mariadb":
            # absent() does not stop a service that ran before us.
            wanted = {"ours": bool((was.get(name) or {}).get("ours") or not services.enabled(name))}
        _bring(services, change, name, wanted, was.get(name) or {}, options["timeout"])
        if name == "mariadb" and ((check and change.actions) or database_missing(options["database"])):
            change.do("make the accounting database", make_database, options["database"])
        if name == "slurmdbd" and not (check and change.actions):
            for words in missing_accounts(options["cluster"], options["accounts"]):
                argv = [find_program("sacctmgr"), "--immediate", "add", *words]
                change.do("add the {0} {1}".format(*words), run_program, argv, RUN_S)
        if not check:
            was[name] = wanted
            remember(was)
    return change.actions


def _bring(
    services: Services,
    change: Change,
    name: str,
    wanted: Dict[str, str],
    was: Mapping[str, str],
    seconds: float,
) -> None:
    if not services.enabled(name):
        change.do("enable {0}".format(name), services.enable, name, True)
    running = bool(services.pids(name))
    if running and was and wanted.get("restart") != was.get("restart"):
        change.do("restart {0}".format(name), services.restart, name)
    elif running and not was and wanted.get("restart"):
        # Its package started it before its configuration existed.
        change.do("restart {0}".format(name), services.restart, name)
    elif not running:
        change.do("start {0}".format(name), services.start, name)
    elif name == "slurmctld" and wanted.get("reload") != was.get("reload"):
        change.do(
            "have slurmctld and all slurmd read the configuration again",
            run_program,
            [find_program("scontrol"), "reconfigure"],
            RUN_S,
        )
    if not change.check:
        wait_for(name, services, seconds, wanted.get("address", ""))


def _end(services: Services, change: Change, name: str) -> None:
    if services.pids(name):
        change.do("stop {0}".format(name), services.stop, name)
    if services.enabled(name):
        change.do("disable {0}".format(name), services.enable, name, False)


def remember(what: Mapping[str, Any]) -> None:
    """Record the configuration that the daemons use."""
    write_whole(host_facts.APPLIED, json.dumps(what, sort_keys=True).encode(), 0o644)


def absent(options: Mapping[str, Any], check: bool) -> List[str]:
    """Stop the daemons that :func:`present` has started; return the changes."""
    services = Services()
    change = Change(check)
    was = host_facts.applied()
    for name in reversed(ORDER):
        if name not in was:
            continue
        if name == "mariadb":
            if options["purge"] and not (check and not services.pids(name)):
                change.do("remove the accounting database", remove_database, options["database"])
            if not was[name].get("ours"):
                continue
        _end(services, change, name)
    if was:
        change.do("forget them", os.unlink, host_facts.APPLIED)
    if options["purge"] and os.path.isdir(STATE):
        change.do("remove {0}".format(STATE), shutil.rmtree, STATE)
    return change.actions


def make_directories(paths: List[str], check: bool) -> List[str]:
    """Create the daemons' directories for the user slurm; return the changes."""
    try:
        entry = pwd.getpwnam("slurm")
    except KeyError:
        if check:  # the package will create the user
            return ["make {0}".format(path) for path in paths]
        raise NodeError("the user slurm is missing, which Slurm's packages make") from None
    changed = []
    for path in paths:
        right = os.path.isdir(path) and os.stat(path).st_uid == entry.pw_uid
        if right:
            continue
        changed.append("make {0}".format(path))
        if not check:
            os.makedirs(path, mode=0o755, exist_ok=True)
            os.chown(path, entry.pw_uid, entry.pw_gid)
    return changed


def make_key(path: str, check: bool) -> List[str]:
    """Create the key that signs tokens, unless it exists; return the changes. Only slurm can read it.

    Its directory must exist.

    Raises:
        NodeError: the user slurm is missing.
    """
    if os.path.exists(path):
        return []
    if not check:
        try:
            entry = pwd.getpwnam("slurm")
        except KeyError:
            raise NodeError("the user slurm is missing, which Slurm's packages make") from None
        key = os.urandom(KEY_BYTES)
        write_whole(path, key, 0o600, lambda file: os.fchown(file, entry.pw_uid, entry.pw_gid))
    return ["make the key of tokens {0}".format(path)]


# --- the cluster -----------------------------------------------------------------------------------------


def nodes() -> List[Dict[str, str]]:
    """Return the nodes by partition: `node`, `partition`, `state`, `reason`, `gres`.

    Raises:
        ProgramProblem: slurmctld does not answer.
    """
    output = run_program([find_program("sinfo"), "--noheader", "--Node", "--format=%N|%R|%T|%E|%G"], RUN_S)
    keys = ("node", "partition", "state", "reason", "gres")
    return [dict(zip(keys, line.split("|"))) for line in output.splitlines() if line]


def unready(wanted: List[str], found: List[Dict[str, str]]) -> Dict[str, str]:
    """Return the nodes that cannot run jobs, each with the reason."""
    states = {one["node"]: one for one in found}
    bad = {}
    for name in wanted:
        one = states.get(name)
        if one is None:
            bad[name] = "slurmctld does not know it"
        elif one["state"].endswith("*") or one["state"].startswith(
            ("down", "unknown", "drain", "drng", "fail")
        ):
            reason = "" if one["reason"] in ("none", "") else " ({0})".format(one["reason"])
            bad[name] = "{0}{1}".format(one["state"], reason)
    return bad


def wait_for_nodes(wanted: List[str], seconds: float) -> List[Dict[str, str]]:
    """Wait until all nodes can run jobs; return them.

    Raises:
        NodeError: some cannot.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = nodes()
            bad = unready(wanted, found)
        except ProgramProblem as problem:
            found, bad = [], {"slurmctld": str(problem)}
        if not bad:
            return found
        if time.monotonic() > deadline:
            output = "; ".join("{0}: {1}".format(*item) for item in sorted(bad.items()))
            hint = "see /var/log/slurm/slurmd.log there"
            if all(reason.startswith(("drain", "drng")) for reason in bad.values()):
                names = ",".join(sorted(bad))
                hint = "scontrol update nodename={0} state=resume brings back what was drained".format(names)
            raise NodeError(
                "not all nodes can take jobs after {0:g} s: {1}: {2}".format(seconds, output, hint)
            )
        time.sleep(POLL_S)
