# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm's programs: what they are given is a list, and no shell; what they print goes to the parsers."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from rdm_core.errors import FAILED, TrainerError
from rdm_job.slurm import limits, reasons, states
from rdm_job.slurm.accounting import (
    ASSOCIATION_FORMAT,
    QOS_FORMAT,
    Accounting,
    associations,
    enforced,
    qualities,
)
from rdm_job.slurm.states import Seen

__all__ = [
    "SlurmError",
    "accounting",
    "cancel",
    "cluster",
    "environment",
    "has_pyxis",
    "is_there",
    "nodes",
    "queue",
    "recorded",
    "submit",
    "without_mpi",
    "would_run",
]

_TIMEOUT_S = 60
# What comes from the place that the agent is asked in, or would go over the script's options.
_LEFT_OUT = re.compile(r"(MY_IP|PYTHON\w*|VIRTUAL_ENV|RDM_\w+|SBATCH_\w+|SLURM_(?!CONF$)\w+)")


class SlurmError(TrainerError):
    """What Slurm said instead of doing what it was asked."""

    def __init__(self, said: str) -> None:
        super().__init__(said, exit_code=FAILED)


def is_there() -> bool:
    """Whether jobs can be submitted from here."""
    return shutil.which("sbatch") is not None


def has_pyxis() -> bool:
    """Whether srun can run its tasks in an image by itself."""
    with contextlib.suppress(SlurmError):
        return "--container-image" in _run(["srun", "--help"])
    return False


def without_mpi(kind: str) -> str:
    """Return why srun cannot start processes with ``--mpi=KIND``; empty where it can.

    Raises:
        SlurmError: There is no srun, or it does not answer.
    """
    # It loads the plugin, and what that loads, before it asks for anything.
    said = _ended(["srun", f"--mpi={kind}", "--test-only", "true"]).stderr.splitlines()
    if not any("invalid mpi type" in line.lower() for line in said):
        return ""
    # Warnings may come first.
    first = next((line for line in said if "error:" in line), said[0])
    return first.rpartition("error: ")[2].rpartition(": ")[2].rstrip(".")


def cluster() -> tuple[list[limits.Partition], list[limits.ClusterNode]]:
    """Return the cluster's partitions and nodes.

    Raises:
        SlurmError: It does not answer.
    """
    partitions, nodes = (_run(["scontrol", "--oneliner", "show", what]) for what in ("partition", "node"))
    return limits.partitions(partitions), limits.nodes(nodes)


def nodes(listed: str) -> list[str]:
    """Return the nodes of a list as Slurm writes it, ``n[1-3]``; none where its programs are missing."""
    with contextlib.suppress(SlurmError):
        return _run(["scontrol", "show", "hostnames", listed]).split() if listed else []
    return []


def accounting() -> Accounting:
    """Return what the accounting lets this user's jobs have; what it does not tell is left out."""
    known = Accounting(user=_name(str(os.getuid())))
    with contextlib.suppress(SlurmError):
        said = _run(["scontrol", "show", "config"])
        settings = dict(re.findall(r"^(\w+) += (.*?) *$", said, re.MULTILINE))
        if settings.get("AccountingStorageType", "").rpartition("/")[2] in ("none", "(null)", ""):
            return known
        cluster = settings.get("ClusterName", "")
        held_to = enforced(settings.get("AccountingStorageEnforce", ""))
        known = replace(known, cluster=cluster, enforced=held_to)
        of = f"cluster={cluster}"
        # The limits of accounts hold for their users, and are in associations of their own.
        whose = [] if "limits" in held_to else [f"user={known.user}"]
        found = associations(_accounts("associations", of, *whose, f"format={ASSOCIATION_FORMAT}"))
        user = (f"name={known.user}", "withassoc", of, "format=defaultaccount")
        default = next(iter(_accounts("users", *user).split()), "")
        qos = qualities(_accounts("qos", f"format={QOS_FORMAT}"))
        known = replace(known, associations=found, default_account=default, qos=qos)
    return known


def would_run(script: Path) -> str:
    """Return why Slurm refuses a script; empty when it would take it."""
    try:
        _run(["sbatch", "--test-only", str(script)], cwd=script.parent)
    except SlurmError as error:
        return str(error)
    return ""


def submit(directory: Path, script: str) -> int:
    """Submit a script of a directory, from there, and return the job's number.

    Raises:
        SlurmError: It is refused.
    """
    said = _run(["sbatch", "--parsable", script], cwd=directory)
    # With the cluster's name behind a semicolon, where there are several.
    found = re.match(r"(\d+)(;|$)", said.strip())
    if found is None:
        raise SlurmError(f"sbatch returned no number of a job: {said.strip()!r}.")
    return int(found[1])


def queue() -> list[Seen]:
    """Return the jobs that Slurm has in its memory: those that wait and run, and those that have just ended.

    Raises:
        SlurmError: It does not answer.
    """
    try:
        return states.of_json(_run(["squeue", "--all", "--states=all", "--json"]))
    except (SlurmError, ValueError):
        # Built without JSON, or of a release that prints it otherwise.
        shown = _run(["squeue", "--all", "--states=all", "--noheader", f"--format={states.QUEUE_FORMAT}"])
        return states.of_queue_text(shown)


def recorded(number: int) -> Seen | None:
    """Return a job as the accounting has it; None where there is none, or it does not know the job.

    Raises:
        SlurmError: There is one, and it does not answer.
    """
    silent: SlurmError | None = None
    text = ["--noheader", "--parsable2", "--allocations", f"--format={states.ACCOUNT_FORMAT}"]
    # The last one reads the file that Slurm writes when jobs end, where an administrator has asked for it.
    for words in (["--json"], text, ["--completion", *text[:2], "--format=JobID,State,Partition,NodeList"]):
        try:
            said = _run(["sacct", f"--jobs={number}", *words])
            if "--completion" in words:
                said = "\n".join(f"{line}|0:0||" for line in said.splitlines())
            parsed = states.of_json(said) if words == ["--json"] else states.of_account_text(said)
            if (seen := states.the_job(parsed, number)) is not None:
                return replace(seen, by=_name(seen.by))
        except SlurmError as error:
            if "is disabled" not in str(error):
                silent = silent or error
        except ValueError:
            # JSON of another form.
            continue
    if silent is not None:
        raise silent
    return None


def cancel(number: int) -> None:
    """End a job. One that has ended is no error."""
    with contextlib.suppress(SlurmError):
        _run(["scancel", str(number)])


def environment() -> dict[str, str]:
    """Return what Slurm's programs, and a job's script, get of this process' environment."""
    kept = {name: value for name, value in os.environ.items() if not _LEFT_OUT.fullmatch(name)}
    return {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def _accounts(*words: str) -> str:
    """Return what sacctmgr shows."""
    return _run(["sacctmgr", "--noheader", "--parsable2", "show", *words])


def _name(user: str) -> str:
    """Return the name of a user who is given as a number; the number, where he has none."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(int(user)).pw_name if user.isdigit() else user
    return user


def _run(command: list[str], cwd: Path | None = None) -> str:
    """Return what a program prints.

    Raises:
        SlurmError: It is not there, or fails; with its last words.
    """
    done = _ended(command, cwd)
    if done.returncode != 0:
        said = [
            re.sub(r"^\w+: (error|fatal): ", "", line) for line in done.stderr.splitlines() if line.strip()
        ]
        # Before the general word of all limits, of which it is one.
        limit = next((reasons.why(line) for line in said if reasons.is_limit(line)), "")
        raise SlurmError((limit or (said or [f"exit code {done.returncode}"])[-1]).rstrip(".") + ".")
    return done.stdout


def _ended(command: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Return how a program ended, and what it said.

    Raises:
        SlurmError: It is not there, or does not end.
    """
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise SlurmError(f"There is no {command[0]} on this host.") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} has not answered within {_TIMEOUT_S} s.") from None
