# SPDX-License-Identifier: GPL-3.0-or-later
"""A network driver's name to its options."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.network_options import driver_options

DOCUMENTATION = r"""
name: network_driver_options
short_description: The options of the container network's driver
description:
  - Returns the options as Docker takes them, and refuses what the driver cannot do.
author:
  - The rdm-provision developers
positional: _input
options:
  _input:
    description: The driver.
    type: str
    choices: [sriov, macvlan, ipvlan, bridge]
    required: true
  parent:
    description: The node's interface below the network.
    type: str
    default: ""
  mode:
    description: The driver's mode; empty means the driver's default.
    type: str
    default: ""
  vlan:
    description: VLAN id; 0 means none.
    type: int
    default: 0
  privileged:
    description: With sriov, containers may set their own MAC addresses.
    type: bool
    default: false
  prefix:
    description: With sriov, how interfaces in the container are named.
    type: str
    default: ""
  pkey:
    description: With sriov, the InfiniBand partition; empty for none.
    type: str
    default: ""
  extra:
    description: Further options, which win.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Show the options
  ansible.builtin.debug:
    msg: "{{ 'macvlan' | rdm.provision.network_driver_options(parent='ib0') }}"
"""

RETURN = r"""
_value:
  description: The options.
  type: dict
"""


def network_driver_options(driver: str, **settings: Any) -> dict[str, str]:
    """Return the options; what the driver cannot do becomes the task's message."""
    try:
        return driver_options(driver, **settings)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """What Ansible asks for the filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"network_driver_options": network_driver_options}
