# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of each node's program for the rounds of RDMA measurements.

Pure. Limits are in seconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.pair_schedule import (
    chosen_rounds,
    partners,
    time_limit,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.rdma import Sample

PORTS = range(20000, 32000, 8)
"""First ports of blocks of eight; a node's program listens on the first free port of a block."""
SIZE = 65536
LATENCY_TRIES = 1000
GATHER = 30.0
PAIR_TIMEOUTS = 4
"""A pair may take this many timeouts, in addition to its measurements."""
_CALL = 2.0  # duration of one module call on a busy node


def measuring(addresses: Mapping[str, str], gathered: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the nodes that can measure, in the order of ranks; none if there is only one.

    Args:
        addresses: MY_IP by name of the whole cluster.
        gathered: what rdma_probe found on the nodes of this run.
    """
    found = [name for name in addresses if name in gathered and not gathered[name].get("reason")]
    return found if len(found) > 1 else []


def parts(
    addresses: Mapping[str, str],
    gathered: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
    forks: int,
    run: str,
) -> dict[str, dict[str, Any]]:
    """Return the settings of each node's program; see rdma_pairs_script.py.

    Args:
        addresses: MY_IP by name of the nodes that measure, in the order of ranks.
        gathered: what rdma_probe found there.
        options: of the action.
        forks: on how many nodes the programs are started at once.
        run: token of this run.
    """
    schedule = chosen_rounds(list(addresses), options["most_rounds"], options["above"])
    rank = {name: number for number, name in enumerate(addresses)}
    gather = GATHER + _CALL * len(addresses) / forks
    first = PORTS[zlib.crc32(run.encode()) % len(PORTS)]
    common = {
        "run": run,
        "ports": list(range(first, first + PORTS.step)),
        "seconds": options["seconds"],
        "size": SIZE,
        "tries": LATENCY_TRIES,
        "timeout": options["timeout"],
        "gather": gather,
        "pair_limit": PAIR_TIMEOUTS * options["timeout"] + 2 * options["seconds"],
        "limit": time_limit(len(schedule), options["seconds"], gather),
    }
    return {
        name: {
            **common,
            **{key: gathered[name]["found"][key] for key in ("device", "ib_port", "gid_index")},
            "name": name,
            "address": addresses[name],
            "rounds": [[peer, addresses[peer], rank[name] < rank[peer]] if peer else None for peer in met],
        }
        for name, met in partners(schedule).items()
    }


def sample_of(count: int, most: int, above: int) -> Sample | None:
    """Return how much is measured; None if every pair is.

    Args:
        count: how many nodes measure.
        most: the number of rounds in a sample.
        above: a cluster of more nodes is sampled.
    """
    of = count - 1 + count % 2
    return Sample(most, of) if count > above and most < of else None
