# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the variables of the inventory's hosts, and the roles' defaults, on the controller."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible.template import Templar
from ansible_collections.rdm.provision.plugins.module_utils.base.facts import NodeFacts
from ansible_collections.rdm.provision.plugins.module_utils.constants import PLAN_FILE
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.task_failure import reason
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory import role_specs
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.registered import answer
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.renamed_variables import with_new_names

REGISTERED = frozenset(
    {
        "preflight_facts",
        "preflight_facts_all",
        "preflight_plan",
        "preflight_rest",
        "preflight_work",
        "images_inspection",
        "verify_out_of_fabric",
        "verify_rest",
    }
)
"""Variables that the roles register: users do not set them, and they are not misspelt."""


class HostVariables:
    """Reads variables of the inventory's hosts, one by one.

    Evaluating all of them takes minutes on a large cluster.

    Args:
        task_vars: of the task.
        raw: returns a host's unevaluated variables; default: the inventory's.
        loader: Ansible's data loader.

    Attributes:
        groups: the inventory's groups with their hosts.
        masters: the hosts of the group master.
        workers: the hosts of the group workers.
        hosts: all of them, the masters first.
    """

    def __init__(
        self,
        task_vars: Mapping[str, Any],
        raw: Callable[[str], dict[str, Any]] | None = None,
        loader: Any = None,
    ) -> None:
        raw = raw or task_vars["hostvars"].raw_get
        groups = self.groups = task_vars["groups"]
        self.masters = [str(name) for name in groups.get("master", [])]
        self.workers = [str(name) for name in groups.get("workers", [])]
        self.hosts = list(dict.fromkeys([*self.masters, *self.workers]))
        self._raw = {host: with_new_names(raw(host)) for host in self.hosts}
        self._templars = {host: Templar(loader, raw) for host, raw in self._raw.items()}
        self._nodes: dict[str, NodeVariables] = {}
        self._written: dict[str, Mapping[str, Any]] = {}
        self.written_defaults = dict(role_specs.role_defaults())
        self._constant: dict[int, tuple[Any, bool]] = {}

    def variables(self, host: str) -> Iterator[str]:
        """Yield the names of all variables of a host."""
        yield from self._raw[host]

    def written(self, host: str) -> Mapping[str, Any]:
        """Return a host's unevaluated variables, without those that roles registered."""
        if host not in self._written:
            raw = self._raw[host]
            self._written[host] = {name: value for name, value in raw.items() if name not in REGISTERED}
        return self._written[host]

    def evaluate(self, host: str, name: str) -> Any:
        """Return a variable's value; AnsibleError when it refers to something undefined."""
        written = self._raw[host][name]
        # Hosts of a group share the object; evaluating it for each host would dominate the run.
        known = self._constant.get(id(written))
        if known is None:
            known = self._constant[id(written)] = (written, _is_constant(written))
        return written if known[1] else self._templars[host].template(written)

    def node(self, host: str) -> NodeVariables:
        """Return a host's variables as its roles see them; what is still undefined has no value."""
        if host not in self._nodes:
            given = self._raw[host]
            self._nodes[host] = NodeVariables(given, lambda name: self.evaluate(host, name), early=True)
        return self._nodes[host]

    def facts(self, name: str, hosts: Mapping[str, str]) -> Iterator[tuple[str, NodeFacts]]:
        """Yield the facts that `node_facts` registered as `name`, for the hosts that answered."""
        for host in hosts:
            # Raw, because results of modules hold no templates.
            registered = answer(name, host, self._raw[host]) or {}
            if isinstance(registered.get("node"), dict):
                yield host, registered["node"]

    def failed(self, name: str, hosts: Mapping[str, str]) -> dict[str, str]:
        """Return the hosts on which `node_facts`, registered as `name`, failed, and why, in one line."""
        found = {}
        for host in hosts:
            registered = answer(name, host, self._raw[host]) or {}
            if registered.get("failed") and not registered.get("unreachable"):
                found[host] = reason(registered).rstrip(".: ")
        return found

    def archives(self, name: str, host: str) -> list[dict[str, Any]]:
        """Return the inspections of image archives that were registered as `name`."""
        registered = self._raw[host].get(name) or {}
        return [one for one in registered.get("results") or [] if "problem" in one]

    def plan_file(self) -> Path:
        """Return the path of the plan file; PreconditionFailed if the inventory is no file or directory."""
        directory = self._raw[self.hosts[0]].get("inventory_dir")
        if not directory:
            raise PreconditionFailed(
                [
                    Problem(
                        None,
                        "the inventory",
                        f"is not a file, so there is no place for {PLAN_FILE} beside it",
                        "write the hosts into inventory/mine/hosts.yml and pass -i inventory/mine",
                    )
                ]
            )
        return Path(str(directory)) / PLAN_FILE

    def real_plan_file(self) -> Path | None:
        """Return the path of the plan file with links resolved; None if the inventory has no directory."""
        try:
            return Path(os.path.realpath(self.plan_file()))
        except (PreconditionFailed, IndexError):
            return None


def _is_constant(value: Any) -> bool:
    """Return whether evaluating a variable changes nothing: it is neither a template nor encrypted."""
    if value is None or isinstance(value, (bool, int, float)):
        return True
    if isinstance(value, str):
        return "{{" not in value and "{%" not in value and "{#" not in value and "#jinja2:" not in value
    if isinstance(value, dict):
        return all(_is_constant(key) and _is_constant(item) for key, item in value.items())
    return isinstance(value, list) and all(map(_is_constant, value))
