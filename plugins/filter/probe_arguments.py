# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the arguments of `fabric_probe` for all nodes of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.rdm.provision.plugins.filter.fabric_peers import fabric_peers

DOCUMENTATION = r"""
name: probe_arguments
short_description: What each node of a run measures
description:
  - Returns the arguments of M(rdm.provision.fabric_probe) that differ from node to node, by node, for
    M(rdm.provision.run_on_all); the nodes to measure are chosen by P(rdm.provision.fabric_peers#filter).
author:
  - The rdm-provision developers
positional: _input, run
options:
  _input:
    description: The address map, one line C(node MY_IP) for each node of the cluster.
    type: str
    required: true
  run:
    description: The nodes that take part in this run.
    type: list
    elements: str
    required: true
  peers:
    description: How many nodes each measures if there are more than O(above).
    type: int
    default: 16
  above:
    description: Up to this number of nodes, each measures all others.
    type: int
    default: 256
  all_pairs:
    description: Whether each measures all others whatever their number.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Measure from all containers
  rdm.provision.run_on_all:
    module: rdm.provision.fabric_probe
    arguments: "{{ preflight_plan.address_map | rdm.provision.probe_arguments(ansible_play_hosts_all) }}"
  register: fabric_measurement_all
  run_once: true
"""

RETURN = r"""
_value:
  description: For each node of the run, its arguments.
  type: dict
"""


def probe_arguments(
    address_map: str, run: Sequence[str], peers: int = 16, above: int = 256, all_pairs: bool = False
) -> dict[str, dict[str, str]]:
    """Return the arguments by node; AnsibleFilterError if an argument is invalid."""
    return {
        node: {"node": node, "nodes": fabric_peers(address_map, node, run, peers, above, all_pairs)}
        for node in run
    }


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"probe_arguments": probe_arguments}
