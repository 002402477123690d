"""Measure the time of the address plan, from ten nodes to as many as a /16 holds.

Run `python benchmarks/planner.py`; it prints a table for docs/performance.md. Times are the best of three.
Ratios compare with the row above: a time that is linear in the nodes grows as they do.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / ".collections"), str(ROOT)]

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import (  # noqa: E402
    NO_ENGINE,
    NodeFacts,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses import (  # noqa: E402
    address_plan,
    collision,
)

from benchmarks.tables import markdown  # noqa: E402

SIZES = (10, 1_000, 10_000, 65_000)
REPEATS = 3


def best_of(work: Callable[[], object]) -> float:
    """Return the shortest time of some runs, in seconds."""
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def node_facts(rank: int) -> NodeFacts:
    """Return the facts about collisions of a typical node in a data centre."""
    high, low = divmod(rank, 256)
    addresses = {"eth0": f"10.1.{high}.{low}/16", "ib0": f"10.2.{high}.{low}/16", "docker0": "172.17.0.1/16"}
    return {
        "interfaces": [{"name": name, "addresses": [address]} for name, address in addresses.items()],
        "routes": [
            {
                "table": "main",
                "destination": destination,
                "interface": "eth0",
                "gateway": "",
            }
            for destination in ("default", "10.1.0.0/16", "10.2.0.0/16", "10.64.0.0/10", "172.17.0.0/16")
        ],
        "docker": {
            **NO_ENGINE,
            "networks": [
                {
                    "id": "0" * 64,
                    "name": "bridge",
                    "driver": "bridge",
                    "subnets": [{"subnet": "172.17.0.0/16", "gateway": "172.17.0.1"}],
                    "options": {"com.docker.network.bridge.name": "docker0"},
                    "labels": {},
                    "containers": [],
                }
            ],
            "default_address_pools": [
                "172.17.0.0/16",
                "192.168.0.0/16",
            ],
        },
        "pools_to_come": [],
        "kubernetes": {"name": "", "ranges": []},
        "ssh": {"client": "", "server": ""},
    }


def measure(count: int) -> dict[str, float]:
    """Return the seconds that each operation takes with this number of nodes."""
    hosts = [f"node{number:05d}" for number in range(count)]
    plan = address_plan.make_plan(hosts)
    text = address_plan.format_plan(plan)
    facts = {name: node_facts(rank) for rank, name in enumerate(hosts)}
    # One node in two hundred leaves, as many come, and the inventory has another order.
    changed = [
        *reversed(hosts[: -(count // 200 + 1)]),
        *(f"fresh{number}" for number in range(count // 200 + 1)),
    ]
    grown = address_plan.make_plan(changed, previous=plan)
    assert all(grown.nodes[name] == plan.nodes[name] for name in changed if name in plan.nodes)
    return {
        "fresh plan": best_of(lambda: address_plan.make_plan(hosts)),
        "same again": best_of(lambda: address_plan.make_plan(hosts, previous=plan)),
        "0.5 % replaced, reordered": best_of(lambda: address_plan.make_plan(changed, previous=plan)),
        "collision check": best_of(
            lambda: collision.collisions(plan.subnet, facts, dict.fromkeys(hosts, "ibnet"), "rdm")
        ),
        "read the file": best_of(lambda: address_plan.parse_plan(text)),
        "write the text": best_of(lambda: address_plan.format_plan(plan)),
    }


def main() -> None:
    """Print the table."""
    print(
        f"`python benchmarks/planner.py`, CPython {platform.python_version()}, best of {REPEATS}, seconds:\n"
    )
    rows: list[list[str]] = []
    before: dict[str, float] = {}
    for count in SIZES:
        found = measure(count)
        if not rows:
            rows.append(["nodes", *found])
        cells = [
            f"{seconds:.4f}" + (f" (x{seconds / before[name]:.0f})" if before else "")
            for name, seconds in found.items()
        ]
        rows.append([f"{count:,}", *cells])
        before = found
    print(markdown(rows))


if __name__ == "__main__":
    main()
