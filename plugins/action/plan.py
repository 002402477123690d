# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the cluster, or refuse with every problem of every node; see plugins/modules/plan.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ansible.errors import AnsibleActionFail
from ansible_collections.rdm.provision.plugins.module_utils.base.file_diff import difference
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
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import run_cache
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.cluster_lock import (
    brief_lock,
    state_folder,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.node_locks import (
    NodeLocks,
    ended,
    of_run,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.query_results import sort
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.thread_pool import run_all
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.cluster_plan import (
    ClusterPlan,
    presumed_config_dir,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.draft import Draft, draft_plan
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import ObservedState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_keys import (
    keys_of,
    origins,
    replaced_authorities,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import DesiredState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state_files import StateFile, state_files
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.work import ROLES
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory import role_specs
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.host_variables import (
    HostVariables,
)

_DESIRED = "desired"
_PLANNING_S = 60.0
"""Seconds to wait for another process that plans."""

# Read once, when Ansible loads the action, because each node's task runs in its own process.
role_specs.options()


class _Desired(NamedTuple):
    """The result of stage `inventory`, which stage `nodes` uses too.

    Attributes:
        draft: the plan from the inventory alone.
        states: node -> its desired state.
        state_files: node -> the inputs of its state file.
    """

    draft: Draft
    states: Mapping[str, DesiredState]
    state_files: Mapping[str, StateFile]


class ActionModule(Decision):
    """The action; it plans from the variables, and writes the plan file."""

    STAGE = "inventory"

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the plan, or the precondition failure."""
        self._variables = variables
        if self._task.get_play().serial:
            _refuse_batches(variables)
        reader = HostVariables(variables, variables_in_play(self._task, variables), self._loader)
        with _alone(reader, options["write"] and not self._task.check_mode):
            return self._plan(reader, options)

    def _plan(self, reader: HostVariables, options: dict[str, Any]) -> dict[str, Any]:
        """Read the plan file, plan, and write the plan file."""
        nodes_stage = options["stage"] == "nodes"
        writes = options["write"] and not self._task.check_mode
        desired = (_taken(reader) if nodes_stage else None) or self._desired(reader, options)
        draft, result = desired.draft, desired.draft.result()
        plan, previous, warnings = draft.checked_plan, draft.previous, draft.warnings
        problems: list[Problem] = []
        carried: list[str] = []
        if nodes_stage:
            wants = desired.states
            if options["keys"]:
                known = origins(reader, previous)
                wants = {node: want._replace(origin=known.get(node)) for node, want in wants.items()}
            locks = self._locks(plan, options) if writes else None
            facts = self._facts(reader, plan, options, locks)
            carried = [(one.get("origin") or {}).get("authority", "") for one in facts.values()]
            try:
                failed = reader.failed(options["facts"], plan.addresses.nodes)
                checked = plan_nodes(plan, {node: wants[node] for node in facts}, facts, writes, failed)
            except PreconditionFailed as refused:
                if locks:
                    locks.release(node for node, one in facts.items() if one.get("locked"))
                if options["refuse"]:
                    return {**refused.result("nodes"), "warnings": warnings}
                problems = refused.problems
            else:
                for node, checked_node in checked.nodes.items():
                    result["nodes"][node].update(checked_node.plain())
                warnings = checked.warnings
        addresses = plan.addresses
        keys = keys_of(reader, plan.inventory.cluster, writes) if options["keys"] else None
        if keys:
            replaced = replaced_authorities(reader, previous, keys, carried)
            addresses = addresses._replace(keys=keys.fingerprints, replaced=replaced)
        result.update(self._keep(reader, addresses, previous, options["write"]), warnings=warnings)
        result["dictionary"] = result["address_map"]
        if not options["refuse"]:
            result["problems"] = [problem._asdict() for problem in problems]
        if options["state_files"]:
            if not nodes_stage:
                run_cache.keep(_DESIRED, desired)
            result["state_files"] = {
                node: one.with_keys(keys, desired.states[node]).plain()
                for node, one in desired.state_files.items()
            }
            result["lock"] = {} if self._task.check_mode else of_run(self._variables, plan.inventory.cluster)
        return result

    def _desired(self, reader: HostVariables, options: dict[str, Any]) -> _Desired:
        """Validate the inventory, and return the nodes' desired states.

        Raises:
            PreconditionFailed: with every problem of the inventory, and of the nodes that can be queried.
        """
        draft = draft_plan(reader, options["release"], self._unseen(reader), options["keys"])
        if draft.problems or draft.plan is None:
            problems = [*draft.problems, *self._problems_of_nodes(reader, draft, options)]
            raise PreconditionFailed(problems, warnings=draft.warnings)
        wanted = options["state_files"] or options["stage"] == "nodes"
        states = draft.states(reader, draft.plan.inventory.nodes if wanted else ())
        compared = state_files(reader, states, draft.images) if options["state_files"] else {}
        return _Desired(draft, states, compared)

    def _facts(
        self, reader: HostVariables, plan: ClusterPlan, options: dict[str, Any], locks: NodeLocks | None
    ) -> dict[str, ObservedState]:
        """Return the facts of the nodes, without the locks of killed runs."""
        facts: dict[str, ObservedState] = {
            node: {**found, "archives": reader.archives(options["inspection"], node)}
            for node, found in reader.facts(options["facts"], plan.addresses.nodes)
        }
        return _taken_over(locks, facts)

    def _unseen(self, reader: HostVariables) -> list[Problem]:
        """Return the problems with variables that the playbook sets for a single role."""
        seen = {host: reader.written(host) for host in reader.hosts}
        return unseen(self._task, self._variables, seen, reader.written_defaults, _planned_variables())

    def _problems_of_nodes(
        self, reader: HostVariables, draft: Draft, options: dict[str, Any]
    ) -> list[Problem]:
        """Return the problems of the nodes that can be queried in threads."""
        plan = draft.plan
        if plan is None or not options["connections"]:
            return []
        hosts = [host for host in self._variables["ansible_play_hosts"] if host in reader.hosts]
        threads, timeout = max(1, int(self._variables["ansible_forks"])), options["timeout"]
        calls = self._calls(plan, hosts, options["connections"])
        answers = sort(run_all(calls, threads, timeout), timeout).answers
        facts = {host: answers[host]["node"] for host in hosts if host in answers}
        doubtful = frozenset(problem.node for problem in draft.problems)
        return problems_of_nodes(plan, draft.problems, draft.states(reader, facts, doubtful), facts)

    def _calls(
        self, plan: ClusterPlan, hosts: list[str], connections: list[str]
    ) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield the names of the nodes that can be queried in threads, each with the call."""
        executor = RemoteExecutor(self, self._variables, connections)
        for name in hosts:
            # The inventory's own problems must be reported even if a node cannot be called.
            with contextlib.suppress(Exception):
                arguments = {"config_dir": presumed_config_dir(plan, name), "node": name}
                yield name, executor.call(executor.host(name), "rdm.provision.node_facts", arguments)

    def _locks(self, plan: ClusterPlan, options: dict[str, Any]) -> NodeLocks | None:
        """Return the locks of the nodes; None in a run that takes none."""
        wanted = of_run(self._variables, plan.inventory.cluster)
        return NodeLocks(self, self._variables, wanted, options["connections"]) if wanted else None

    def _keep(
        self, reader: HostVariables, plan: AddressPlan, previous: AddressPlan | None, write: bool
    ) -> dict[str, Any]:
        """Write the plan file if it differs; return `changed`, `saved` and `diff`."""
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


@contextlib.contextmanager
def _alone(reader: HostVariables, writes: bool) -> Iterator[None]:
    """Let one process at a time read the plan file, plan, and write it: two could assign one address twice.

    Raises:
        PreconditionFailed: another process holds the lock for too long.
    """
    with contextlib.ExitStack() as stack:
        path = reader.real_plan_file() if writes else None
        if path is not None:
            try:
                stack.enter_context(brief_lock(state_folder(path.parent) / "lock.plan", _PLANNING_S))
            except TimeoutError:
                reason = f"has been in work by another process for {_PLANNING_S:.0f} s"
                raise PreconditionFailed(
                    [Problem(None, str(path), reason, "try again when that has ended")]
                ) from None
            except OSError:
                pass  # the plan cannot be written either, which is reported later
        yield


def _taken(reader: HostVariables) -> _Desired | None:
    """Return the result of the stage `inventory`, unless the plan file has changed since."""
    desired: _Desired | None = run_cache.take(_DESIRED)
    with contextlib.suppress(address_plan.PlanFileError):
        if desired and address_plan.read_plan(str(reader.plan_file())) == desired.draft.previous:
            return desired
    return None


def _planned_variables() -> set[str]:
    """Return the names of the variables that the plan depends on."""
    names = {name for role, name, _ in role_specs.role_options() if role in ROLES}
    return names | set(role_specs.cluster_options())


def _taken_over(locks: NodeLocks | None, facts: Mapping[str, ObservedState]) -> dict[str, ObservedState]:
    """Take over the locks of runs that were killed on this machine; return the facts without these."""
    holders = {node: found["lock"] for node, found in facts.items() if found.get("lock")}
    now = {node: {} if ended(holder) else holder for node, holder in holders.items()}
    if locks and holders:
        now = locks.take((), holders)
    return {node: {**found, "lock": now.get(node, {})} for node, found in facts.items()}


def _refuse_batches(task_vars: Mapping[str, Any]) -> None:
    """Refuse a play whose `serial` splits its hosts into batches.

    Raises:
        AnsibleActionFail: it has more than one batch.
    """
    batch = len(task_vars.get("ansible_play_batch") or ())
    hosts = len(task_vars.get("ansible_play_hosts") or ())
    if 0 < batch < hosts:
        raise AnsibleActionFail(
            f"serial makes this play take {batch} of {hosts} hosts at a time, and the plan is for all at "
            "once: take serial out of the play, and use --forks to say how many nodes are worked on at once"
        )
