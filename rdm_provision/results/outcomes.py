"""What a run found on each node, from the results of its modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rdm_provision.problem import Problem
from rdm_provision.results.events import RunResult
from rdm_provision.results.node_state import NodeState, node_state

FACTS_MODULE = "rdm.provision.node_facts"
CONTAINER_MODULE = "rdm.provision.container"
FILES_MODULE = "rdm.provision.node_files"
EXEC_MODULE = "rdm.provision.container_exec"
SLURM_PLAN_MODULE = "rdm.provision.slurm_plan"
SLURM_NODES_MODULE = "rdm.provision.slurm_nodes"


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """How a command ended in the container of one node.

    Attributes:
        node: its name.
        rc: the exit code, or None if it did not run.
        stdout: its standard output.
        stderr: its standard error.
        error: why it failed or did not run, in one line.
    """

    node: str
    rc: int | None
    stdout: str = ""
    stderr: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class SlurmAnswer:
    """What slurmctld reported.

    Attributes:
        nodes: for each node and partition ``node``, ``partition``, ``state``, ``reason`` and ``gres``.
        jobs: the queue: ``id``, ``state``, ``partition`` and ``nodes``.
        hints: what firewalls must let through, after a run that made the cluster.
    """

    nodes: tuple[Mapping[str, str], ...] = ()
    jobs: tuple[Mapping[str, str], ...] = ()
    hints: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as ``--json`` prints it."""
        return {name: [*getattr(self, name)] for name in ("nodes", "jobs", "hints")}


def slurm_answer(result: RunResult) -> SlurmAnswer:
    """Return the last report of slurmctld."""

    def last(module: str, key: str) -> Mapping[str, Any]:
        return _last([one for _node, one in result.answers(module) if key in one])

    queried, planned = last(SLURM_NODES_MODULE, "nodes"), last(SLURM_PLAN_MODULE, "plan")
    return SlurmAnswer(
        tuple(queried.get("nodes") or ()),
        tuple(queried.get("jobs") or ()),
        tuple((planned.get("plan") or {}).get("hints") or ()),
    )


def states(result: RunResult, cluster: str) -> tuple[NodeState, ...]:
    """Return the state of each node in a run of ``status``, for the cluster of this name."""
    facts = result.returned.get(FACTS_MODULE, {})
    plan = result.plan or {"cluster": cluster, "nodes": {}}
    problems = [Problem.from_result(problem) for problem in plan.get("problems", ())]
    return tuple(
        node_state(name, plan, recap.why, _last(facts.get(name)).get("node"), problems)
        for name, recap in result.nodes.items()
    )


def containers(result: RunResult, nodes: Sequence[str]) -> tuple[tuple[str, str, str, str], ...]:
    """Return what a run of ``up`` left running.

    What the run did to a container overrides what it observed before. The state is unknown if the node was
    lost, or failed before that.

    Args:
        result: of the run.
        nodes: in the order of ranks.

    Returns:
        Per node, in the same order: its name, its container with the state, image, address.
    """
    plan = (result.plan or {}).get("nodes", {})
    returned = result.returned.get(CONTAINER_MODULE, {})
    lines = []
    for name in nodes:
        planned, recap = plan.get(name) or {}, result.nodes.get(name)
        # The last result counts: the first may be the check for a running job.
        made = _last(returned.get(name)).get("container")
        known = made or (planned.get("seen") if recap else None)
        if not known:
            continue
        state, image = str(known["state"]), str(known["image"])
        if recap and (recap.unreachable or (recap.failed and not made)):
            state, image = "not known since it failed", ""
        lines.append((name, f"{known['name']} ({state})", image, str(planned.get("my_ip", ""))))
    return tuple(lines)


def kept(result: RunResult) -> dict[str, tuple[str, ...]]:
    """Return the directories that a run of ``down`` left, not being empty: directory → nodes."""
    found: dict[str, list[str]] = {}
    for name, results in result.returned.get(FILES_MODULE, {}).items():
        removed = {path for res in results for path in res.get("paths", ())}
        kept = dict.fromkeys(path for res in results for path in res.get("kept", ()))
        for path in kept:
            # Name the directory, not its parents.
            if path not in removed and not any(other.startswith(f"{path}/") for other in kept):
                found.setdefault(path, []).append(name)
    return {path: tuple(nodes) for path, nodes in found.items()}


def outputs(result: RunResult) -> tuple[CommandOutput, ...]:
    """Return the output of a run of ``exec``, by node."""
    returned = result.returned.get(EXEC_MODULE, {})
    return tuple(_output(name, recap.why, _last(returned.get(name))) for name, recap in result.nodes.items())


def _last(results: Sequence[Mapping[str, Any]] | None) -> Mapping[str, Any]:
    return results[-1] if results else {}


def _output(name: str, why: str, res: Mapping[str, Any]) -> CommandOutput:
    if res.get("rc") is None:
        return CommandOutput(name, None, error=why or "it did not run")
    stdout, stderr = str(res.get("stdout", "")), str(res.get("stderr", ""))
    return CommandOutput(name, int(res["rc"]), stdout, stderr, error=why)
