"""Measure the network plugin rdm-sriov, and whether it loses virtual functions.

    python benchmarks/sriov_plugin.py [--rounds 10] [--containers 100]

It prints the time of CreateEndpoint and Join together over the plugin's socket, until all VFs are assigned:
with 7 and with 128 VFs in a tree of files instead of sysfs; for InfiniBand, which needs no command, and for
Ethernet, for which `ip` sets and shows the rights of a VF. A script stands in for `ip`: the figure has two of
its starts and reading its output about all VFs, not the card. The CPU time is of both sides and their
children, per container, in the fastest round: unlike the other times, it hardly changes on a busy machine.

Then it starts and removes containers under a real Docker Engine of its own, as root, seven at a time on seven
macvlan links instead of VFs, and counts the functions that are not free after each round. --rounds 0 leaves
that out. It exits with 1 if functions are lost, or one takes more than 50 ms of CPU time.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / ".collections"), str(ROOT)]

from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import (  # noqa: E402
    GENERIC,
    call_plugin,
)
from ansible_collections.rdm.provision.rdm_sriov.driver import Driver  # noqa: E402
from ansible_collections.rdm.provision.rdm_sriov.server import Server  # noqa: E402
from ansible_collections.rdm.provision.rdm_sriov.state import State  # noqa: E402
from ansible_collections.rdm.provision.rdm_sriov.vfs import ETHERNET, NodeVfs  # noqa: E402

from benchmarks.tables import markdown  # noqa: E402

INFINIBAND = 32  # of /sys/class/net/*/type
PARENT = "ib0"
MOST_CPU_MS = 50.0


class Tree(NodeVfs):
    """Functions in a tree of files."""

    def up(self, interface: str) -> None:
        """Do nothing: a file cannot be switched on."""


def tree(root: Path, count: int, kind: int) -> None:
    """Make sysfs's files of a physical function with VFs, ETHERNET or INFINIBAND."""
    devices = root / "bus/pci/devices"
    parent = devices / "0000:3b:00.0"
    virtual = [(f"ibv{one}", devices / f"0000:3b:{1 + one // 8:02x}.{one % 8}") for one in range(count)]
    for number, (name, device) in enumerate([(PARENT, parent), *virtual]):
        interface = device / "net" / name
        interface.mkdir(parents=True)
        (interface / "type").write_text(f"{kind}\n")
        (interface / "address").write_text(f"02:00:00:00:00:{number:02x}\n")
        (interface / "device").symlink_to(device)
        (root / "class/net").mkdir(parents=True, exist_ok=True)
        (root / "class/net" / name).symlink_to(interface)
        if number:
            (parent / f"virtfn{number - 1}").symlink_to(device)
    (parent / "sriov_totalvfs").write_text(f"{count}\n")


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage in the block: it would be that of everything else in this process."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def command_ip(directory: Path, count: int) -> Iterator[None]:
    """Let a script stand in for the command ip, on a card whose VFs have no addresses."""
    shown = [{"vf": number, "address": "00:00:00:00:00:00", "link_state": "auto"} for number in range(count)]
    (directory / "shown").write_text(json.dumps([{"ifname": PARENT, "vfinfo_list": shown}]))
    script = directory / "ip"
    script.write_text(f'#!/bin/sh\n[ "$1" != -j ] || exec cat {directory}/shown\n')
    script.chmod(0o755)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{directory}:{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


def cpu_ms() -> float:
    """Return the CPU time of this process and of children that it has waited for, in ms."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return 1000 * sum(one.ru_utime + one.ru_stime for one in used)


def latency(count: int, kind: int, rounds: int = 20) -> tuple[float, float, float]:
    """Return the median, the maximum and the CPU time, in ms, of CreateEndpoint and Join together.

    The CPU time is the mean of the fastest round, without garbage collection: on a node, the plugin has only
    its own garbage.

    Args:
        count: the number of VFs; all are assigned in each round.
        kind: ETHERNET or INFINIBAND.
        rounds: the number of rounds; fewer if there are many VFs.
    """
    taken, cpu = [], []
    with (
        uncollected(),
        tempfile.TemporaryDirectory(prefix="rdm-bench-", dir="/tmp") as name,
        command_ip(Path(name), count),
    ):
        directory = Path(name)
        tree(directory / "sys", count, kind)
        path = str(directory / "p.sock")
        server = Server(path, Driver(Tree(str(directory / "sys")), State(str(directory)), dict))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        request = {
            "NetworkID": "n",
            "Options": {GENERIC: {"netdevice": PARENT}},
            "IPv4Data": [{"Pool": "10.0.0.0/8"}],
        }
        call_plugin(path, "NetworkDriver.CreateNetwork", request)
        for _ in range(min(rounds, 256 // count)):
            before = cpu_ms()
            for number in range(count):
                end = {"NetworkID": "n", "EndpointID": f"e{number}"}
                began = time.perf_counter()
                call_plugin(
                    path,
                    "NetworkDriver.CreateEndpoint",
                    {**end, "Interface": {"Address": f"10.0.0.{number}/8"}},
                )
                call_plugin(path, "NetworkDriver.Join", end)
                taken.append((time.perf_counter() - began) * 1000)
            cpu.append((cpu_ms() - before) / count)
            for number in range(count):
                call_plugin(
                    path, "NetworkDriver.DeleteEndpoint", {"NetworkID": "n", "EndpointID": f"e{number}"}
                )
        server.shutdown()
        server.server_close()
    return statistics.median(taken), max(taken), min(cpu)


def leaks(rounds: int, containers: int) -> tuple[list[int], float]:
    """Return how many VFs are not free after each round of containers, and the seconds of all rounds.

    The last number counts those that no container can get at the end.
    """
    from tests.integration.sriov_node import VFS, sriov_node

    def start_and_stop(number: int) -> None:
        node.run(f"bench{number}")
        node.remove(f"bench{number}")

    with sriov_node("20.10") as node:
        held = []
        began = time.monotonic()
        for _ in range(rounds):
            with ThreadPoolExecutor(VFS) as pool:
                list(pool.map(start_and_stop, range(containers)))
            held.append(len(node.promised()))
        seconds = time.monotonic() - began
        started = []
        for number in range(VFS):
            with contextlib.suppress(RuntimeError):  # no function is left for it
                started.append(node.run(f"last{number}"))
        node.remove(*(f"last{number}" for number in range(VFS)))
    return [*held, VFS - len(started)], seconds


def main() -> int:
    """Measure and print; return 1 if functions were lost, or the plugin takes too much CPU time."""
    parser = argparse.ArgumentParser(description="Measure the network plugin rdm-sriov.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--containers", type=int, default=100)
    options = parser.parse_args()
    rows = [["", "VFs", "CreateEndpoint + Join, median", "largest", "CPU"]]
    most = 0.0
    for name, kind in (("InfiniBand", INFINIBAND), ("Ethernet", ETHERNET)):
        for count in (7, 128):
            *times, cpu = latency(count, kind)
            rows.append([name, str(count), *(f"{one:.1f} ms" for one in (*times, cpu))])
            most = max(most, cpu)
    print(markdown(rows), flush=True)
    if options.rounds < 1:
        return int(most > MOST_CPU_MS)
    leaked, seconds = leaks(options.rounds, options.containers)
    print(
        f"\n{options.containers} containers started and removed {options.rounds} times in {seconds:.0f} s: "
        f"{max(leaked)} VFs leaked."
    )
    return int(most > MOST_CPU_MS or any(leaked))


if __name__ == "__main__":
    sys.exit(main())
