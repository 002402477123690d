# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs Slurm's programs without a shell, and passes their output to the parsers."""

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
from rdm_job.slurm.states import SlurmJob

_TIMEOUT_S = 60
_UNAVAILABLE = "Requested node configuration is not available"
# Variables of the environment in which this runs, or that would override the script's options.
_LEFT_OUT = re.compile(r"(MY_IP|PYTHON\w*|VIRTUAL_ENV|RDM_\w+|SBATCH_\w+|SLURM_(?!CONF$)\w+)")


class SlurmError(TrainerError):
    """Slurm's error message."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=FAILED)


def is_there() -> bool:
    """Whether jobs can be submitted from here."""
    return shutil.which("sbatch") is not None


def has_pyxis() -> bool:
    """Whether srun can run its tasks in an image by itself."""
    with contextlib.suppress(SlurmError):
        return "--container-image" in _run(["srun", "--help"])
    return False


def without_mpi(kind: str) -> str:
    """Return why srun cannot start processes with ``--mpi=KIND``; empty if it can.

    Raises:
        SlurmError: There is no srun, or it does not answer.
    """
    # srun loads the plugin and its libraries before it requests an allocation.
    errors = _ended(["srun", f"--mpi={kind}", "--test-only", "true"]).stderr.splitlines()
    if not any("invalid mpi type" in line.lower() for line in errors):
        return ""
    # Warnings may precede the error.
    first = next((line for line in errors if "error:" in line), errors[0])
    return first.rpartition("error: ")[2].rpartition(": ")[2].rstrip(".")


def cluster() -> tuple[list[limits.Partition], list[limits.ClusterNode]]:
    """Return the cluster's partitions and nodes.

    Raises:
        SlurmError: It does not answer.
    """
    partitions, nodes = (_run(["scontrol", "--oneliner", "show", what]) for what in ("partition", "node"))
    return limits.partitions(partitions), limits.nodes(nodes)


def nodes(listed: str) -> list[str]:
    """Return the nodes in a list of Slurm's, such as ``n[1-3]``; none if its programs are missing."""
    with contextlib.suppress(SlurmError):
        return _run(["scontrol", "show", "hostnames", listed]).split() if listed else []
    return []


def accounting() -> Accounting:
    """Return what the accounting allows this user's jobs, as far as it can be queried."""
    known = Accounting(user=_name(str(os.getuid())))
    with contextlib.suppress(SlurmError):
        output = _run(["scontrol", "show", "config"])
        settings = dict(re.findall(r"^(\w+) += (.*?) *$", output, re.MULTILINE))
        if settings.get("AccountingStorageType", "").rpartition("/")[2] in ("none", "(null)", ""):
            return known
        cluster = settings.get("ClusterName", "")
        held_to = enforced(settings.get("AccountingStorageEnforce", ""))
        known = replace(known, cluster=cluster, enforced=held_to)
        of = f"cluster={cluster}"
        # The limits of accounts, which apply to their users, are in the accounts' own associations.
        whose = [] if "limits" in held_to else [f"user={known.user}"]
        found = associations(_accounts("associations", of, *whose, f"format={ASSOCIATION_FORMAT}"))
        user = (f"name={known.user}", "withassoc", of, "format=defaultaccount")
        default = next(iter(_accounts("users", *user).split()), "")
        qos = qualities(_accounts("qos", f"format={QOS_FORMAT}"))
        known = replace(known, associations=found, default_account=default, qos=qos)
    return known


def would_run(script: Path) -> str:
    """Return why Slurm refuses a script; empty if it accepts it.

    Raises:
        SlurmError: It does not answer.
    """
    try:
        _run(["sbatch", "--test-only", str(script)], cwd=script.parent)
    except SlurmError as error:
        # The test leaves out nodes that are down or drained. A submitted job waits for them.
        if _UNAVAILABLE not in str(error) or not _run(["sinfo", "--noheader", "--list-reasons"]).strip():
            return str(error)
    return ""


def submit(directory: Path, script: str) -> int:
    """Submit a script from its directory, and return the job's id.

    Raises:
        SlurmError: It is refused.
    """
    output = _run(["sbatch", "--parsable", script], cwd=directory)
    # With several clusters, a semicolon and the cluster's name follow.
    found = re.match(r"(\d+)(;|$)", output.strip())
    if found is None:
        raise SlurmError(f"sbatch returned no number of a job: {output.strip()!r}.")
    return int(found[1])


def queue() -> list[SlurmJob]:
    """Return the jobs in Slurm's memory: those that wait or run, and those that ended recently.

    Raises:
        SlurmError: It does not answer.
    """
    try:
        return states.of_json(_run(["squeue", "--all", "--states=all", "--json"]))
    except (SlurmError, ValueError):
        # Slurm was built without JSON, or its release prints another form.
        shown = _run(["squeue", "--all", "--states=all", "--noheader", f"--format={states.QUEUE_FORMAT}"])
        return states.of_queue_text(shown)


def recorded(number: int) -> SlurmJob | None:
    """Return a job's record in the accounting; None if there is no accounting or no record.

    Raises:
        SlurmError: The accounting does not answer.
    """
    silent: SlurmError | None = None
    text = ["--noheader", "--parsable2", "--allocations", f"--format={states.ACCOUNT_FORMAT}"]
    # The last one reads the file of ended jobs that Slurm writes if an administrator has enabled it.
    for words in (["--json"], text, ["--completion", *text[:2], "--format=JobID,State,Partition,NodeList"]):
        try:
            output = _run(["sacct", f"--jobs={number}", *words])
            if "--completion" in words:
                output = "\n".join(f"{line}|0:0||" for line in output.splitlines())
            parsed = states.of_json(output) if words == ["--json"] else states.of_account_text(output)
            if (seen := states.the_job(parsed, number)) is not None:
                return replace(seen, by=_name(seen.by))
        except SlurmError as error:
            if "is disabled" not in str(error):
                silent = silent or error
        except ValueError:
            # JSON in another form.
            continue
    if silent is not None:
        raise silent
    return None


def cancel(number: int) -> None:
    """Cancel a job. It is no error if the job has ended."""
    with contextlib.suppress(SlurmError):
        _run(["scancel", str(number)])


def environment() -> dict[str, str]:
    """Return the environment of Slurm's programs and of a job's script, from this process's own."""
    kept = {name: value for name, value in os.environ.items() if not _LEFT_OUT.fullmatch(name)}
    return {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def _accounts(*words: str) -> str:
    """Return the output of sacctmgr."""
    return _run(["sacctmgr", "--noheader", "--parsable2", "show", *words])


def _name(user: str) -> str:
    """Return the name of a user given as a name or number; the number if the user has no name."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(int(user)).pw_name if user.isdigit() else user
    return user


def _run(command: list[str], cwd: Path | None = None) -> str:
    """Return the output of a program.

    Raises:
        SlurmError: It is not installed, or fails; with the last line of its errors.
    """
    done = _ended(command, cwd)
    if done.returncode != 0:
        errors = [
            re.sub(r"^\w+: (error|fatal): ", "", line) for line in done.stderr.splitlines() if line.strip()
        ]
        # Prefer the specific limit to the general error that follows it.
        limit = next((reasons.why(line) for line in errors if reasons.is_limit(line)), "")
        raise SlurmError((limit or (errors or [f"exit code {done.returncode}"])[-1]).rstrip(".") + ".")
    return done.stdout


def _ended(command: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program, and return its result.

    Raises:
        SlurmError: It is not installed, or does not end in time.
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
