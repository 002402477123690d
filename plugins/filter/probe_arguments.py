# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the arguments of `fabric_probe` for all nodes of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.rdm.provision.plugins.filter.fabric_peers import fabric_peers


def probe_arguments(
    address_map: str, run: Sequence[str], peers: int = 16, above: int = 256, all_pairs: bool = False
) -> dict[str, dict[str, str]]:
    """Return the arguments of `fabric_probe` that differ from node to node, by node; as `fabric_peers`."""
    return {
        node: {"node": node, "nodes": fabric_peers(address_map, node, run, peers, above, all_pairs)}
        for node in run
    }


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"probe_arguments": probe_arguments}
