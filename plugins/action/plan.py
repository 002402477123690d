# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the cluster, or refuse with every problem of every node; see plugins/modules/plan.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.rdm.provision.plugins.module_utils.base.file_diff import difference
from ansible_collections.rdm.provision.plugins.modules.plan import DOCUMENTATION
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses import address_plan
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.address_plan import AddressPlan
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.play_variables import (
    unseen,
    variables_in_play,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.remote_executor import (
    RemoteExecutor,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.cluster import (
    plan_nodes,
    problems_of_nodes,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import (
    Decision,
    documented_options,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.node_locks import (
    NodeLocks,
    ended,
    of_run,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.plan_lock import alone
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.query_results import sort
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.thread_pool import run_all
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.cluster_plan import (
    ClusterPlan,
    presumed_config_dir,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_inputs import (
    base_of_nodes,
    plan_inventory,
    planned_variables,
    state_of_node,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_keys import (
    keys_of,
    origins,
    replaced_authorities,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.receipts import receipts
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory import role_specs
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.host_variables import (
    HostVariables,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.image_list import Images
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.vault import undecryptable

# Read once, when Ansible loads the action: each node's task runs in a process of its own.
role_specs.options()


class ActionModule(Decision):
    """The action: reads variables, decides, keeps the plan file; it talks to no node."""

    ARGUMENTS = documented_options(DOCUMENTATION)
    STAGE = "inventory"

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the plan, or the refusal."""
        self._variables = variables
        if self._task.get_play().serial:
            _refuse_batches(variables)
        reader = HostVariables(variables, variables_in_play(self._task, variables), self._loader)
        with alone(reader, options["write"] and not self._task.check_mode):
            if options["stage"] == "inventory":
                _refuse_secrets(reader)
            return self._plan(reader, options, self._unseen(reader, variables))

    def _plan(self, reader: HostVariables, options: dict[str, Any], unseen: list[Problem]) -> dict[str, Any]:
        """Read the plan file, plan, and keep the plan."""
        stage = options["stage"]
        draft = plan_inventory(reader, options["release"], unseen, options["keys"])
        plan, previous, images, problems, warnings = draft
        if problems or plan is None:
            node_problems = self._problems_of_nodes(reader, plan, images, problems, options) if plan else []
            raise PreconditionFailed([*problems, *node_problems], warnings=warnings)
        planned = _planned(plan, previous, images)
        nodes = planned["nodes"]
        asked = nodes if options["receipts"] or stage == "nodes" else ()
        states = {
            node: state_of_node(reader, PlanEntry.of(planned, node), plan, images[node]) for node in asked
        }
        found: list[Problem] = []
        facts: dict[str, dict[str, Any]] = {}
        if stage == "nodes":
            facts = {
                node: {**found, "archives": reader.archives(options["inspection"], node)}
                for node, found in reader.facts(options["facts"], plan.addresses.nodes)
            }
            origin = origins(reader, previous) if options["keys"] else {}
            wants = {node: states[node]._replace(origin=origin.get(node)) for node in facts}
            changes = options["write"] and not self._task.check_mode
            locks = self._locks(plan, options) if changes else None
            facts = _taken_over(locks, facts)
            try:
                failed = reader.failed(options["facts"], plan.addresses.nodes)
                checked = plan_nodes(plan, wants, facts, changes, failed)
            except PreconditionFailed as refused:
                if locks:
                    locks.release(node for node, one in facts.items() if one.get("locked"))
                if options["refuse"]:
                    return {**refused.result("nodes"), "warnings": warnings}
                found = refused.problems
            else:
                for node, more in checked.nodes.items():
                    nodes[node].update(more)
                warnings = checked.warnings
        writes = options["write"] and not self._task.check_mode
        addresses = plan.addresses
        keys = keys_of(reader, plan.inventory.cluster, writes) if options["keys"] else None
        if keys:
            carried = ((one.get("origin") or {}).get("authority", "") for one in facts.values())
            replaced = replaced_authorities(reader, previous, keys, carried)
            addresses = addresses._replace(keys=keys.fingerprints, replaced=replaced)
        result = self._keep(reader, addresses, previous, options["write"])
        result.update(planned, warnings=warnings)
        if not options["refuse"]:
            result["problems"] = [problem._asdict() for problem in found]
        if options["receipts"]:
            brings = {name: bool(one.image and one.listed) for name, one in images.items()}
            result["receipts"] = receipts(reader, states, result, brings, keys)
            result["lock"] = {} if self._task.check_mode else of_run(self._variables, plan.inventory.cluster)
        return result

    def _unseen(self, reader: HostVariables, variables: Mapping[str, Any]) -> list[Problem]:
        """Return the problems with variables that the playbook gives to a role alone."""
        seen = {host: reader.written(host) for host in reader.hosts}
        return unseen(self._task, variables, seen, reader.written_defaults, planned_variables())

    def _problems_of_nodes(
        self,
        reader: HostVariables,
        plan: ClusterPlan,
        images: Mapping[str, Images],
        problems: list[Problem],
        options: dict[str, Any],
    ) -> list[Problem]:
        """Return what is wrong with the nodes themselves, as far as they answer at once."""
        hosts = [host for host in self._variables["ansible_play_hosts"] if host in reader.hosts]
        threads, timeout = max(1, int(self._variables["ansible_forks"])), options["patience"]
        calls = self._calls(plan, hosts, options["look"]) if options["look"] else ()
        answers = sort(run_all(calls, threads, timeout), timeout).answers
        facts = {host: answers[host]["node"] for host in hosts if host in answers}
        doubtful = {problem.node for problem in problems}
        planned = _planned(plan, None, images)
        wants = {}
        for host in facts:
            trusted = doubtful.isdisjoint({None, host})
            wants[host] = state_of_node(reader, PlanEntry.of(planned, host), plan, images[host], trusted)
        return problems_of_nodes(plan, problems, wants, facts)

    def _calls(
        self, plan: ClusterPlan, hosts: list[str], connections: list[str]
    ) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield what looks at the nodes that can be asked in threads, with their names."""
        executor = RemoteExecutor(self, self._variables, connections)
        for name in hosts:
            # Whatever the inventory may bring: what is wrong with it is to be told in any case.
            with contextlib.suppress(Exception):
                arguments = {"config_dir": presumed_config_dir(plan, name), "node": name}
                yield name, executor.call(executor.host(name), "rdm.provision.node_facts", arguments)

    def _locks(self, plan: ClusterPlan, options: dict[str, Any]) -> NodeLocks | None:
        """Return what takes and releases the nodes' locks; None in a run that has none."""
        wanted = of_run(self._variables, plan.inventory.cluster)
        return NodeLocks(self, self._variables, wanted, options["look"]) if wanted else None

    def _keep(
        self, reader: HostVariables, plan: AddressPlan, previous: AddressPlan | None, write: bool
    ) -> dict[str, Any]:
        """Write the plan file when it differs; return `changed`, `saved` and `diff`."""
        before = "" if previous is None else address_plan.format_plan(previous)
        after = address_plan.format_plan(plan)
        differs = before != after
        path = reader.plan_file()
        writes = write and not self._task.check_mode
        if differs and writes:
            try:
                address_plan.write_plan(str(path), plan)
            except OSError as error:
                hint = "let this user write beside the inventory"
                problem = Problem(None, str(path), f"cannot be written: {error.strerror}", hint)
                raise PreconditionFailed([problem]) from None
        kept: dict[str, Any] = {"changed": differs and write, "saved": writes or not differs}
        if differs and self._task.diff:
            kept["diff"] = difference(str(path), before, after)
        return kept


def _planned(plan: ClusterPlan, previous: AddressPlan | None, images: Mapping[str, Images]) -> dict[str, Any]:
    """Return what the action returns of the cluster, before any node was looked at."""
    addresses = plan.addresses
    nodes = base_of_nodes(plan, previous, images)
    master = next(iter(addresses.nodes))
    return {
        "cluster": plan.inventory.cluster,
        "subnet": str(addresses.subnet),
        "prefixlen": addresses.subnet.prefixlen,
        "gateway": addresses.gateway,
        "master": master,
        "master_addr": addresses.nodes[master],
        "nodes": nodes,
        "hostfile": address_plan.hostfile(addresses, {name: node["slots"] for name, node in nodes.items()}),
        "dictionary": address_plan.dictionary(addresses),
        "removed": addresses.removed,
        **({"rails": [str(subnet) for subnet in plan.rails]} if plan.rails else {}),
    }


def _taken_over(locks: NodeLocks | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts without the locks of runs that were killed on this machine, which are taken over."""
    holders = {node: found["lock"] for node, found in facts.items() if found.get("lock")}
    now = {node: {} if ended(holder) else holder for node, holder in holders.items()}
    if locks and holders:
        now = locks.take((), holders)
    return {node: {**found, "lock": now.get(node, {})} for node, found in facts.items()}


def _refuse_secrets(reader: HostVariables) -> None:
    """See to it that encrypted variables can be read; Refused when not."""
    if found := undecryptable({host: reader.written(host) for host in reader.hosts}):
        raise PreconditionFailed(found)


def _refuse_batches(task_vars: Mapping[str, Any]) -> None:
    """Refuse a play with `serial` that takes its hosts a few at a time.

    Raises:
        AnsibleActionFail: it does.
    """
    batch, hosts = (len(task_vars.get(f"ansible_play_{name}") or ()) for name in ("batch", "hosts"))
    if 0 < batch < hosts:
        raise AnsibleActionFail(
            f"serial makes this play take {batch} of {hosts} hosts at a time, and the plan is for all at "
            "once: take serial out of the play, and use --forks to say how many nodes are worked on at once"
        )
