# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a Slurm cluster, or refuse it; see plugins/modules/slurm_plan.py."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory import role_specs
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.registered import registered
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.role_variables import variable_problems
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import changes as slurm_changes
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import cluster as slurm_cluster
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import conf as slurm_conf
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import plan as slurm_plan

HEALTH_CHECK = Path(__file__).resolve().parents[2] / "roles/slurm/files/health-check"
KEY_BYTES = 64


class ActionModule(Decision):
    """The action; it plans, and makes munge's key on the controller."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the plan, or the precondition failure."""
        plan = self._end if options["state"] == "absent" else self._plan
        return {"plan": plan(options, variables)}

    def _end(self, options: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is removed."""
        everybody = _everybody(options, variables)
        jobs = [job for facts in everybody.values() for job in facts["jobs"] or []]
        if problems := slurm_plan.check_queue(jobs, slurm_changes.unseen(everybody)):
            raise PreconditionFailed(problems)
        return {**slurm_plan.removed(), "database": slurm_conf.database(options["cluster"])}

    def _plan(self, options: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the desired state of each host, and make munge's key."""
        cluster, problems = self._cluster(options, variables)
        facts = {name: host.facts for name, host in cluster.hosts.items()}
        problems += slurm_plan.check_key(_digest(options["key"]), facts, options["key"])
        if problems:
            raise PreconditionFailed(problems)
        if not self._task.check_mode:
            make_key(Path(options["key"]))
        health = HEALTH_CHECK.read_text(encoding="utf-8") if options["health_check"] else ""
        return {
            "controller": cluster.controller,
            "login": cluster.login,
            "nodes": cluster.nodes,
            "database": slurm_conf.database(cluster.name),
            "hosts": slurm_plan.hosts_of(cluster, _digest(options["key"]), options["accounts"], health),
            "hints": slurm_conf.hints(cluster),
        }

    def _cluster(
        self, options: Mapping[str, Any], variables: Mapping[str, Any]
    ) -> tuple[slurm_cluster.Cluster, list[Problem]]:
        """Return the cluster and what is wrong with it.

        Raises:
            PreconditionFailed: problems that make further checks impossible.
        """
        groups = variables["groups"]
        problems: list[Problem] = []
        controller, login = slurm_cluster.controller_of(groups, problems)
        nodes = list(dict.fromkeys([*groups.get("master", []), *groups.get("workers", [])]))
        partitions = slurm_cluster.partitions_of(options["partitions"], groups, nodes, problems)
        problems += slurm_plan.check_accounts(options["accounts"])
        wanted = list(dict.fromkeys([*nodes, controller, login]))
        found = registered(options["facts"], variables, wanted)
        for name in wanted:
            if "slurm" not in found.get(name, {}):
                hint = "give the cluster as a whole, without --limit, and see that each host is reached"
                problems.append(Problem(name, "", "has no facts, and Slurm has one configuration", hint))
        for name in wanted:
            problems += variable_problems(name, _given(name, variables))
        if problems:
            raise PreconditionFailed(problems)
        hosts = {name: _host(name, found[name]["slurm"], variables) for name in wanted}
        cgroups = options["cgroups"] == "true" or (
            options["cgroups"] == "auto" and slurm_cluster.cgroups_work(hosts[name].facts for name in nodes)
        )
        hooks = (
            {name: f"{path}/*" for name, path in slurm_plan.HOOKS.items()} if options["health_check"] else {}
        )
        cluster = slurm_cluster.Cluster(
            options["cluster"],
            controller,
            login,
            partitions,
            hosts,
            options["options"],
            cgroups,
            hooks,
            options["rest"],
        )
        problems += slurm_cluster.check(cluster)
        everybody = _everybody(options, variables)
        problems += slurm_changes.check_controller(cluster.name, controller, everybody)
        if not problems:
            there = hosts[controller].facts
            problems += slurm_changes.endangered(
                there["conf"],
                slurm_conf.slurm_conf(cluster),
                there["jobs"] or [],
                slurm_changes.unseen(everybody),
            )
        return cluster, problems


def _everybody(options: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of all hosts of the play."""
    found = registered(options["facts"], variables)
    return {name: one["slurm"] for name, one in found.items() if "slurm" in one}


def _given(name: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of this role that have a value for a host."""
    own = variables["hostvars"][name]
    given = {one: own.get(one) for one in role_specs.options() if one.startswith("slurm_")}
    return {one: value for one, value in given.items() if value is not None}


def _host(name: str, facts: Mapping[str, Any], variables: Mapping[str, Any]) -> slurm_cluster.Host:
    """Return a host with its own variables."""
    own = _given(name, variables)

    def value(variable: str) -> Any:
        if variable in own:
            return role_specs.typed(variable, own[variable])[0]
        return role_specs.typed_default(variable)

    return slurm_cluster.Host(
        name,
        str(value("slurm_address") or variables["hostvars"][name].get("ansible_host") or name),
        facts,
        cpus=int(value("slurm_cpus")),
        memory=int(value("slurm_memory")),
        gpu_type=str(value("slurm_gpu_type")),
        gpu_devices=[str(device) for device in value("slurm_gpu_devices")],
        options=value("slurm_node_options"),
        health_disk=int(value("slurm_health_disk")),
        health_ignored_ports=[str(port) for port in value("slurm_health_ignored_ports")],
    )


def make_key(path: Path) -> None:
    """Make munge's key, readable only by its owner, unless it exists."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    (path.parent / ".gitignore").write_text("*\n", encoding="ascii")
    write_whole(str(path), secrets.token_hex(KEY_BYTES).encode(), 0o400)


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""
