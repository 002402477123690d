# SPDX-License-Identifier: GPL-3.0-or-later
"""Reduce the address map of a cluster to the lines of the nodes that one node measures."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.rdm.provision.plugins.module_utils.fabric.answers import parse_nodes
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric import sample as fabric_sample


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
    """Return the lines of a node and of the nodes that it measures, in the order of the address map.

    In a small cluster these are all nodes. In a large one each node measures a sample, and is measured by as
    many others. The same cluster always has the same sample. In a run of a part of a large cluster, a node
    also measures a sample of the run's nodes.

    Args:
        address_map: one line `node MY_IP` for each node of the cluster.
        node: the node that measures.
        run: the nodes that take part in this run.
        peers: how many nodes each measures if there are more than `above`.
        above: up to this number of nodes, each measures all others.
        all_pairs: whether each measures all others whatever their number.

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
