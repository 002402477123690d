# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a job, or refuse it with every problem of every node; see plugins/modules/job_plan.py."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.constants import ACCELERATORS
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.registered import registered
from ansible_collections.rdm.provision.plugins.plugin_utils.jobs.job_plan import (
    Node,
    Slurm,
    Wanted,
    evaluate,
    past,
    plan_job,
)


class ActionModule(Decision):
    """The action; it works on the controller only."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the plan, or the precondition failure."""
        if options["stage"] == "nodes":
            job = options["job"]
            answers = registered(options["checks"], variables)
            known = [Problem(**problem) for problem in job.get("problems") or ()]
            problems = [*known, *evaluate(job, answers)]
            if problems:
                return PreconditionFailed(problems).result("inventory" if known else self.STAGE)
            return {"job": dict(job, offer=answers[job["master"]].get("offer") or {})}
        nodes = [
            Node(name, node["my_ip"], int(node["slots"]))
            for name, node in sorted(options["nodes"].items(), key=lambda item: int(item[1]["rank"]))
        ]
        try:
            wanted = self._wanted(options, variables)
            has_sbatch = shutil.which("sbatch") is not None
            slurm = Slurm(options["login"], has_sbatch, options["images"])
            before = past(registered(options["before"], variables) if wanted.resume else {})
            in_run = variables["ansible_play_hosts_all"]
            plan = plan_job(wanted, nodes, in_run, time.time(), slurm, before, put_off=options["put_off"])
        except PreconditionFailed as refused:
            return refused.result("inventory")
        try:
            accelerator = self._accelerator(options, plan.nodes[0].name)
        except PreconditionFailed as refused:
            # The deferred problems must not be lost.
            return PreconditionFailed([*plan.problems, *refused.problems]).result("inventory")
        return {"job": dict(plan.as_dict(), accelerator=accelerator)}

    @staticmethod
    def _accelerator(options: dict[str, Any], master: str) -> str:
        """Return the accelerator of the job's nodes.

        Raises:
            PreconditionFailed: Slurm chooses the nodes, and the inventory does not name their accelerator.
        """
        nodes: dict[str, Any] = options["nodes"]
        node: dict[str, Any] = nodes.get(master) or next(iter(nodes.values()), {})
        found = str(node.get("accelerator") or options["accelerator"])
        if found not in ACCELERATORS:
            what = f"rdm_accelerator {found}".strip()
            reason = "says what the nodes that Slurm gives have"
            hint = f"set it to {', '.join(ACCELERATORS[:-1])} or {ACCELERATORS[-1]}"
            raise PreconditionFailed([Problem(None, what, reason, hint)])
        return found

    @staticmethod
    def _wanted(options: dict[str, Any], variables: dict[str, Any]) -> Wanted:
        """Return the job that the user wants, with its configuration's text.

        Raises:
            PreconditionFailed: there is no configuration, or it cannot be read.
        """
        given = (options["overrides"], options["name"], options["resume"])
        if not options["config"]:
            if options["resume"]:
                return Wanted("", "", *given)
            hint = "set job_config to a YAML file, or job_resume to the name of a job"
            raise PreconditionFailed([Problem(None, "", "there is no configuration of a job", hint)])
        path = Path(options["config"]).expanduser()
        if not path.exists() and not path.is_absolute() and variables.get("inventory_dir"):
            local = Path(variables["inventory_dir"]) / path
            path = local if local.exists() else path
        try:
            return Wanted(path.read_text(encoding="utf-8"), str(path), *given)
        except (OSError, UnicodeError) as error:
            reason = (
                f"cannot be read: {error.strerror}" if isinstance(error, OSError) else "is not text in UTF-8"
            )
            raise PreconditionFailed(
                [Problem(None, str(path), reason, "give the path of a YAML file")]
            ) from None
