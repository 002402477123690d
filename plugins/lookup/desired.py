# SPDX-License-Identifier: GPL-3.0-or-later
"""Return a role's part of the node's desired state; see DOCUMENTATION."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible.utils.display import Display
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import Observed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry, needed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import OTHER_PARTS, PARTS, desired
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import PreconditionFailed
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.renamed_variables import (
    notices,
    with_new_names,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh import cluster_keys

DOCUMENTATION = r"""
name: desired
short_description: A role's part of the node's desired state
version_added: 0.2.0
author: The rdm-provision developers
description:
  - Makes a role's part of the node's desired state from the role's variables and from C(preflight_plan), the
    registered result of M(rdm.provision.plan). Without a plan it uses only the variables.
  - The plan makes the same part to decide whether the role has work on the node.
  - It also has what else the role's tasks depend on, from what this run registered for the node,
    such as whether preflight found the network.
options:
  _terms:
    description: Name of the role.
    type: str
    required: true
  state:
    description: V(absent) returns what the role removes.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Show the network that the node should have
  ansible.builtin.debug:
    msg: "{{ lookup('rdm.provision.desired', 'network').networks[0].subnet }}"
"""

RETURN = r"""
_raw:
  description: The role's part, as documented in C(plugins/plugin_utils/desired/).
  type: list
  elements: dict
"""


_last: dict[Any, Any] = {}
"""The task's variables, and the parts made from them, by role and `absent`."""


class LookupModule(LookupBase):
    """The lookup."""

    def run(self, terms: list[Any], variables: Any = None, **options: Any) -> list[Any]:
        """Return the role's part."""
        self.set_options(var_options=variables, direct=options)
        role, absent = str(terms[0]), self.get_option("state") == "absent"
        roles = [*PARTS, *OTHER_PARTS]
        if role not in roles:
            raise AnsibleError(f"there is no desired state of a role {role}: choose {', '.join(roles)}")
        # Templates of a task read one key after the other, and each of them calls the lookup.
        if _last.get("variables") is not variables:
            _last.clear()
            _last["variables"] = variables
        if (role, absent) not in _last:
            _last[role, absent] = self._made(role, absent, variables)
        return [_last[role, absent]]

    def _made(self, role: str, absent: bool, variables: Mapping[str, Any]) -> dict[str, Any]:
        node = str(variables["inventory_hostname"])
        given = with_new_names(variables)
        mine = NodeVariables(given, lambda name: self._templar.template(given[name]))
        if "preflight_plan" not in variables:
            for notice in notices(variables):
                Display().warning(notice)
        observed = Observed(node, variables)
        entry = PlanEntry.of(variables.get("preflight_plan") or {}, node)
        try:
            if role == "container":
                entry = entry._replace(engine=observed.engine)
            if role in ("container", "ssh_config") and not absent:
                entry = entry._replace(keys=_keys(mine, observed, entry))
            return desired(role, mine, entry, absent, observed)
        except ValueError as error:
            raise AnsibleError(f"{node}: {error}") from None


def _keys(mine: NodeVariables, observed: Observed, entry: PlanEntry) -> dict[str, str]:
    """Return the node's ssh key files; none in check mode if the keys are not made yet."""
    if observed.check_mode and mine.true("preflight_new_ssh_keys"):
        return {}
    inventory = str(observed.variables.get("inventory_dir") or "")
    directory = cluster_keys.directory_of(mine.text("container_ssh_key_dir"), inventory)
    try:
        keys = cluster_keys.read(directory)
    except PreconditionFailed as refused:
        raise AnsibleError(str(refused)) from None
    if keys is None and not observed.check_mode:
        raise AnsibleError(f"the cluster's ssh keys are not in {directory}")
    my_ip = needed("container_my_ip", mine, entry.my_ip)
    return cluster_keys.of_node(keys, mine.text("rdm_cluster"), entry.node, my_ip) if keys else {}
