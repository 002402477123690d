# SPDX-License-Identifier: GPL-3.0-or-later
"""Reduce the address map of a cluster to the lines of the nodes that one node measures."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.rdm.provision.plugins.module_utils.fabric.answers import parse_nodes
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric import sample as fabric_sample

DOCUMENTATION = r"""
name: fabric_peers
short_description: The nodes that one node measures
description:
  - Returns the lines of a node and of the nodes that it measures, for M(rdm.provision.fabric_probe).
  - In a small cluster these are all nodes. In a large one each node measures a sample, and is measured by as
    many others. The same cluster always has the same sample.
  - In a run of a part of a large cluster, a node also measures a sample of the run's nodes.
author:
  - The rdm-provision developers
positional: _input, node, run
options:
  _input:
    description: The address map, one line C(node MY_IP) for each node of the cluster.
    type: str
    required: true
  node:
    description: The node that measures.
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
- name: Measure how the other containers answer
  rdm.provision.fabric_probe:
    node: "{{ inventory_hostname }}"
    nodes: >-
      {{ preflight_plan.address_map
      | rdm.provision.fabric_peers(inventory_hostname, ansible_play_hosts_all) }}
"""

RETURN = r"""
_value:
  description: The lines of the address map, in its order.
  type: str
"""


@functools.lru_cache(maxsize=1)
def _nodes(address_map: str) -> dict[str, str]:
    """Return MY_IP by name, cached, since every node of a run has the same address map."""
    return parse_nodes(address_map)


def fabric_peers(
    address_map: str,
    node: str,
    run: Sequence[str],
    peers: int = 16,
    above: int = 256,
    all_pairs: bool = False,
) -> str:
    """Return the lines.

    Raises:
        AnsibleFilterError: an argument is invalid.
    """
    if int(peers) < 1:
        raise AnsibleFilterError(f"a node must measure at least 1 peer, not {peers}")
    try:
        nodes = _nodes(address_map)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error
    if all_pairs or len(nodes) <= int(above) or node not in nodes:
        return address_map  # the module reports a node that is not in it
    chosen = {node, *fabric_sample.peers_of(node, list(nodes), run, int(peers), int(above))}
    return "".join(f"{name} {address}\n" for name, address in nodes.items() if name in chosen)


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"fabric_peers": fabric_peers}
