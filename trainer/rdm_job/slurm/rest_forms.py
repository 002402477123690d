# SPDX-License-Identifier: GPL-3.0-or-later
"""The requests and replies of slurmrestd, for each version of its API. Pure functions.

The forms follow its OpenAPI specification: v0.0.38 (Slurm 22.05) has one form, v0.0.40 to v0.0.42 (23.11 to
25.05) another. v0.0.39 is left out: every server that offers it also offers one of the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rdm_core.config.slurm import generic_resources, limit_seconds
from rdm_job.slurm.limits import ClusterNode, Partition, mebibytes
from rdm_job.slurm.states import counted

APIS = (38, 40, 41, 42)
"""The supported versions, as the last number of ``v0.0.N``."""
_FIRST_NEW = 40
_ENDLESS = 0xFFFFFFFE
"""Slurm's number for "no limit" in the plain numbers of v0.0.38; the next number means "not set"."""


def name(api: int) -> str:
    """Return a version in the form used in paths."""
    return f"v0.0.{api}"


def newest(specification: str) -> int | None:
    """Return the newest supported version in an OpenAPI specification, JSON or YAML; None without one."""
    # JSON may escape slashes.
    paths = specification.replace("\\/", "/")
    listed = {int(found) for found in re.findall(r"/slurm/v0\.0\.(\d+)/job/submit", paths)}
    return max(listed.intersection(APIS), default=None)


def submission(script: str, directory: str, environment: Mapping[str, str], api: int) -> dict[str, Any]:
    """Return the request that submits a script.

    slurmrestd ignores ``#SBATCH`` lines, so this function reads them as sbatch does.

    Args:
        script: The text of a script from :mod:`rdm_job.slurm.script`.
        directory: Its working directory.
        environment: Its environment.
        api: One of ``APIS``.

    Raises:
        ValueError: This API does not support an option; one sentence.
    """
    parts: list[dict[str, Any]] = []
    entries: Any = dict(environment)
    if api >= _FIRST_NEW:
        entries = [f"{name}={value}" for name, value in environment.items()]
    for options in _components(script):
        part: dict[str, Any] = {"current_working_directory": directory, "environment": entries}
        for option, value in options:
            for key, word in _property(option, value, api):
                # Two options for GRES make one list.
                part[key] = f"{part[key]},{word}" if key == "tres_per_node" and key in part else word
        # sbatch computes this itself.
        part["tasks"] = part["tasks_per_node"] * sum(int(value) for key, value in options if key == "nodes")
        parts.append(part)
    request: dict[str, Any] = {"job": parts[0]} if len(parts) == 1 else {"jobs": parts}
    if api >= _FIRST_NEW:
        parts[0]["script"] = script
    else:
        request["script"] = script
    return request


def error_text(answer: Any) -> str:
    """Return the errors in a reply; empty without any."""
    errors = answer.get("errors") if isinstance(answer, Mapping) else None
    words = [
        ": ".join(dict.fromkeys(str(error[key]).strip().rstrip(".") for key in keys if error.get(key)))
        for error in errors or ()
        if isinstance(error, Mapping)
        for keys in [("description", "error")]
    ]
    return "; ".join(dict.fromkeys(filter(None, words))) or ("no reason given" if errors else "")


def partitions(answer: Mapping[str, Any]) -> list[Partition]:
    """Return the partitions in a reply.

    v0.0.40 and later do not mark the default one; an only partition is the default.
    """
    entries = answer["partitions"]
    return [_partition(entry, len(entries) == 1) for entry in entries]


def nodes(answer: Mapping[str, Any]) -> list[ClusterNode]:
    """Return the nodes in a reply."""
    return [
        ClusterNode(
            name=str(entry["name"]),
            partitions=_list(entry.get("partitions")),
            # Such as `gpu:a10:4(S:0-1)`.
            gres=generic_resources(re.sub(r"\([^)]*\)", "", str(entry.get("gres") or ""))),
            features=_list(entry.get("features")),
            cpus=int(entry.get("effective_cpus") or entry.get("cpus") or 0),
            mem=int(entry.get("real_memory") or 0),
        )
        for entry in answer["nodes"]
    ]


def accounts(answer: Mapping[str, Any], user: str) -> list[str]:
    """Return a user's accounts, from a reply with associations."""
    found = {str(one.get("account") or "") for one in answer["associations"] if one.get("user") == user}
    return sorted(found - {""})


def _components(script: str) -> list[list[tuple[str, str]]]:
    """Return the options of each component of a script, up to its first command."""
    found: list[list[tuple[str, str]]] = [[]]
    for line in script.splitlines():
        if line and not line.startswith("#"):
            break
        if line == "#SBATCH hetjob":
            found.append([])
        elif line.startswith("#SBATCH --"):
            option, _, value = line.removeprefix("#SBATCH --").partition("=")
            found[-1].append((option, value))
    return found


def _property(option: str, value: str, api: int) -> Iterator[tuple[str, Any]]:
    """Yield the properties of a request for an option of sbatch.

    Raises:
        ValueError: The API does not support it; one sentence.
    """
    new = api >= _FIRST_NEW
    plain = {
        "job-name": "name",
        "output": "standard_output",
        "partition": "partition",
        "constraint": "constraints",
        "account": "account",
        "qos": "qos",
    }
    counts = {"ntasks-per-node": "tasks_per_node", "cpus-per-task": "cpus_per_task"}
    if option in plain:
        yield plain[option], value
    elif option in counts:
        yield counts[option], int(value)
    elif option in ("requeue", "no-requeue"):
        yield "requeue", option == "requeue"
    elif option == "open-mode":
        yield "open_mode", [value.upper()] if new else value
    elif option == "nodes":
        yield "nodes", value if new else [int(value), int(value)]
    elif option == "mem":
        yield "memory_per_node", _number(mebibytes(value), new)
    elif option == "time":
        yield "time_limit", _number(-(-limit_seconds(value) // 60), new)
    elif option == "gres" and new:
        yield "tres_per_node", ",".join(f"gres/{word}" for word in value.split(","))
    elif option == "gpus-per-node" and new:
        yield "tres_per_node", f"gres/gpu:{value}"
    elif option in ("gres", "gpus-per-node"):
        yield option.replace("-", "_"), value
    elif option == "nodelist" and new:
        yield "required_nodes", [value]
    elif option == "nodelist":
        yield option, value
    elif option == "exclude":
        yield "excluded_nodes" if new else "exclude_nodes", [value] if new else value
    elif option == "hint" and value == "nomultithread":
        yield "threads_per_core", 1
    elif option == "hint":
        raise ValueError(f"slurmrestd takes no launcher.slurm.hint={value}, only nomultithread.")
    elif option == "signal" and not new:
        # Its key `signal` cannot signal only the script, and the signal would end all other processes.
        raise ValueError(
            f"slurmrestd of {name(api)} cannot signal a script before its time limit: set "
            "launcher.slurm.signal=0, and the job ends at its limit without saving."
        )
    elif option == "signal":
        which, _, seconds = value.removeprefix("B:").partition("@")
        yield "kill_warning_flags", ["BATCH_JOB"]
        yield "kill_warning_signal", which
        yield "kill_warning_delay", _number(int(seconds), new)
    else:
        raise ValueError(f"slurmrestd of {name(api)} is not known to take sbatch's --{option}.")


def _number(value: int, new: bool) -> Any:
    return {"set": True, "infinite": False, "number": value} if new else value


def _partition(entry: Mapping[str, Any], only: bool) -> Partition:
    """Return a partition from either form: plain keys, or sections."""
    sections = isinstance(entry.get("maximums"), Mapping)
    flagged = "default" in [str(flag).lower() for flag in entry.get("flags") or ()]
    most = entry["maximums"] if sections else {}
    allowed = entry["accounts"] if sections else {}
    state = entry["partition"]["state"] if sections else entry.get("state")
    minutes = _limit(most.get("time") if sections else entry.get("max_time_limit"))
    # In v0.0.38 this key has blanks, contrary to its specification.
    least = entry.get("min nodes per job") or entry.get("min_nodes_per_job")
    if sections:
        least = entry.get("minimums", {}).get("nodes")
    mine = allowed.get("allowed") if sections else entry.get("allowed_accounts")
    return Partition(
        name=str(entry["name"]),
        is_default=only or flagged or (None if sections else False),
        state=" ".join(map(str, state)) if isinstance(state, list) else str(state or "UP"),
        nodes=int((entry["nodes"]["total"] if sections else entry.get("total_nodes")) or 0),
        most_nodes=_limit(most.get("nodes") if sections else entry.get("maximum_nodes_per_job")),
        most_seconds=None if minutes is None else minutes * 60,
        accounts=_list(mine) if mine and mine != "ALL" else None,
        denied=_list(allowed.get("deny") if sections else entry.get("denied_accounts")),
        least_nodes=_limit(least) or 0,
    )


def _limit(value: Any) -> int | None:
    found = counted(value)
    return None if found is None or not 0 <= found < _ENDLESS else int(found)


def _list(value: str | Iterable[str] | None) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value or ()
    return tuple(filter(None, words))
