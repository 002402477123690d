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

from rdm_job.slurm import limits, states
from rdm_job.slurm.states import Seen
from rdm_trainer.errors import FAILED, TrainerError

__all__ = [
    "SlurmError",
    "accounts",
    "cancel",
    "cluster",
    "environment",
    "has_pyxis",
    "is_there",
    "queue",
    "recorded",
    "submit",
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


def cluster() -> tuple[list[limits.Partition], list[limits.ClusterNode]]:
    """Return the cluster's partitions and nodes.

    Raises:
        SlurmError: It does not answer.
    """
    partitions, nodes = (_run(["scontrol", "--oneliner", "show", what]) for what in ("partition", "node"))
    return limits.partitions(partitions), limits.nodes(nodes)


def accounts() -> list[str]:
    """Return this user's accounts; none where there is no accounting."""
    user = pwd.getpwuid(os.getuid()).pw_name
    asked = [
        "sacctmgr",
        "--noheader",
        "--parsable2",
        "show",
        "associations",
        f"user={user}",
        "format=account",
    ]
    with contextlib.suppress(SlurmError):
        return limits.accounts(_run(asked))
    return []


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


def _name(user: str) -> str:
    """Return the name of a user who is given as a number."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(int(user)).pw_name if user.isdigit() else user
    return user


def _run(command: list[str], cwd: Path | None = None) -> str:
    """Return what a program prints.

    Raises:
        SlurmError: It is not there, or fails; with its last words.
    """
    try:
        done = subprocess.run(
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
    if done.returncode != 0:
        said = [line for line in done.stderr.strip().splitlines() if line] or [f"exit code {done.returncode}"]
        raise SlurmError(re.sub(r"^\w+: (error|fatal): ", "", said[-1]).rstrip(".") + ".")
    return done.stdout
