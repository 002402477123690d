# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of the inventory's hosts, and those that the collection's roles have, for the controller."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible.vars.hostvars import HostVarsVars
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
"""What the roles themselves register: not variables for users, and no misspelt ones either."""


class HostVariables:
    """Reads variables of the inventory's hosts, one by one.

    To evaluate all of them takes minutes on a large cluster.

    Args:
        task_vars: of the task.
        raw: what gives a host's variables as they are written; default: the inventory's.
        loader: Ansible's loader of data.

    Attributes:
        groups: the inventory's, with their hosts.
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
        self._by_host = {host: HostVarsVars(raw, loader, host) for host, raw in self._raw.items()}
        self._nodes: dict[str, NodeVariables] = {}
        self._written: dict[str, Mapping[str, Any]] = {}
        self.written_defaults = dict(role_specs.role_defaults())
        self._constant: dict[int, tuple[Any, bool]] = {}

    def variables(self, host: str) -> Iterator[str]:
        """Yield the names of all variables of a host."""
        yield from self._by_host[host]

    def written(self, host: str) -> Mapping[str, Any]:
        """Return a host's variables as they are written, templates and all, without what roles registered."""
        if host not in self._written:
            raw = self._raw[host]
            self._written[host] = {name: value for name, value in raw.items() if name not in REGISTERED}
        return self._written[host]

    def evaluate(self, host: str, name: str) -> Any:
        """Return a variable's value; AnsibleError when it refers to something undefined."""
        written = self._raw[host][name]
        # Hosts of a group share the object. Evaluating it for each would take longer than everything else.
        known = self._constant.get(id(written))
        if known is None:
            known = self._constant[id(written)] = (written, _is_constant(written))
        return written if known[1] else self._by_host[host][name]

    def node(self, host: str) -> NodeVariables:
        """Return a host's variables as its roles take them; what is not known yet has no value."""
        if host not in self._nodes:
            self._nodes[host] = NodeVariables(
                self._by_host[host], lambda name: self.evaluate(host, name), early=True
            )
        return self._nodes[host]

    def facts(self, name: str, hosts: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what `node_facts` registered as `name`, for the hosts that answered."""
        for host in hosts:
            # Raw, because results of modules hold no templates.
            registered = answer(name, host, self._raw[host]) or {}
            if isinstance(registered.get("node"), dict):
                yield host, registered["node"]

    def failed(self, name: str, hosts: Mapping[str, str]) -> dict[str, str]:
        """Return the hosts on which `node_facts`, registered as `name`, has failed, and why, in one line."""
        found = {}
        for host in hosts:
            registered = answer(name, host, self._raw[host]) or {}
            if registered.get("failed") and not registered.get("unreachable"):
                found[host] = reason(registered).rstrip(".: ")
        return found

    def archives(self, name: str, host: str) -> list[dict[str, Any]]:
        """Return what the inspections of image archives registered as `name`; none where there was none."""
        registered = self._raw[host].get(name) or {}
        return [one for one in registered.get("results") or [] if "problem" in one]

    def plan_file(self) -> Path:
        """Return the path of the plan file; Refused when the inventory is not a file or directory."""
        host = self._by_host[self.hosts[0]]
        directory = host.get("inventory_dir")
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
        """Return what the plan file is a link to, or itself; None when there is no place for it."""
        try:
            return Path(os.path.realpath(self.plan_file()))
        except (PreconditionFailed, IndexError):
            return None


def _is_constant(value: Any) -> bool:
    """Tell whether a variable is the same when it is evaluated: neither a template, nor encrypted."""
    if value is None or isinstance(value, (bool, int, float)):
        return True
    if isinstance(value, str):
        return "{{" not in value and "{%" not in value and "{#" not in value and "#jinja2:" not in value
    if isinstance(value, dict):
        return all(_is_constant(key) and _is_constant(item) for key, item in value.items())
    return isinstance(value, list) and all(map(_is_constant, value))
