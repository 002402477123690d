# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of rdm.provision.job: choose the node's execution environment, and resume logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.rdm.provision.plugins.plugin_utils.jobs import job_directory

MODULE = "rdm.provision.job"
OFFSET = "offset"
"""The option and the returned value with the position up to which a log has been read."""


_PLANNED = ("check", "config", "start")


class ActionModule(ActionBase):
    """Runs the module in the node's execution environment; each try of `until` continues the one before.

    A host that is a node and also submits jobs to Slurm has two; the one that knows the job answers.
    """

    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module."""
        variables = task_vars or {}
        super().run(tmp, variables)
        arguments = dict(self._task.args)
        verb = arguments["verb"] = verb_of(arguments)
        before = variables.get(self._task.register) if self._task.until and self._task.register else None
        if isinstance(before, dict) and before.get(OFFSET) is not None:
            arguments[OFFSET] = before[OFFSET]
        groups = variables.get("groups") or {}
        planned = bool((arguments.get("plan") or {}).get("slurm")) if verb in _PLANNED else None
        way = False if verb == "running" else planned
        answers = []
        for slurm in job_directory.ways(groups, str(variables.get("inventory_hostname")), way):
            answer = self._query(slurm, arguments, variables)
            if answer.get("known"):
                return answer
            answers.append(answer)
        return joined(answers, verb, skip_missing=way is None and job_directory.both(groups))

    def _query(self, slurm: bool, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Run the module in one execution environment; for Slurm it runs as the user who is logged in."""
        environment = job_directory.environment_options(
            lambda name: self._templar.template(variables.get(name)), submits=slurm
        )
        # `place` is the option's former name.
        chosen: dict[str, Any] = {} if "place" in arguments else {"execution_environment": environment}
        become = self._connection.become
        if slurm:
            self._connection.set_become_plugin(None)
        try:
            answer: dict[str, Any] = self._execute_module(
                module_name=MODULE,
                module_args={**chosen, **arguments},
                task_vars=variables,
            )
        finally:
            self._connection.set_become_plugin(become)
        return answer


def verb_of(arguments: Mapping[str, Any]) -> str:
    """Return the module's `verb`; by default, one job is shown, or all are listed."""
    return str(arguments.get("verb") or ("state" if arguments.get("name") else "list"))


def joined(answers: list[dict[str, Any]], verb: str, *, skip_missing: bool) -> dict[str, Any]:
    """Return one answer for a host whose execution environments do not know the job, or for all its jobs.

    Args:
        answers: of its execution environments.
        verb: the module's `verb`.
        skip_missing: whether to warn of a missing execution environment, since jobs may be in the other.
    """
    missing = [one for one in answers if one.get("no_environment")] if skip_missing else []
    there = [one for one in answers if one not in missing]
    failed = [one for one in there if one.get("failed") or one.get("unreachable")]
    if failed:
        return failed[0]
    found = {key: value for one in there for key, value in one.items()}
    if not there:
        found = {"changed": False, "known": False, "ended": True}
    if any(one.get("near") for one in there):
        found["near"] = [job for one in there for job in one.get("near") or ()]
    if verb == "list":
        found["jobs"] = [job for one in there for job in one.get("jobs") or ()]
    if missing:
        found["warnings"] = [*found.get("warnings", ()), *(str(one["msg"]) for one in missing)]
    return found
