"""What the network plugin rdm-sriov takes, and whether it loses virtual functions.

    python benchmarks/sriov_plugin.py [--rounds 10] [--containers 100]

Prints the time of CreateEndpoint and Join together over the plugin's socket, with 7 and with 128 VFs in a
tree of files in place of sysfs, until all are handed out. Then it starts and removes containers under a
real Docker Engine of its own, as root, seven at a time on seven macvlan links in place of VFs, and counts
the functions that are not free afterwards.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / ".collections"), str(ROOT)]

from ansible_collections.rdm.provision.plugins.module_utils.sriov.client import GENERIC, ask  # noqa: E402
from ansible_collections.rdm.provision.plugins.module_utils.sriov.driver import Driver  # noqa: E402
from ansible_collections.rdm.provision.plugins.module_utils.sriov.functions import Functions  # noqa: E402
from ansible_collections.rdm.provision.plugins.module_utils.sriov.server import Server  # noqa: E402
from ansible_collections.rdm.provision.plugins.module_utils.sriov.state import State  # noqa: E402

from benchmarks.tables import markdown  # noqa: E402

PARENT = "ib0"


class Tree(Functions):
    """Functions in a tree of files, where InfiniBand's need no command of the node."""

    def up(self, interface: str) -> None:
        """A file cannot be switched on."""


def tree(root: Path, count: int) -> None:
    """Make what sysfs shows of a physical function with VFs, as InfiniBand."""
    devices = root / "bus/pci/devices"
    parent = devices / "0000:3b:00.0"
    virtual = [(f"ibv{one}", devices / f"0000:3b:{1 + one // 8:02x}.{one % 8}") for one in range(count)]
    for number, (name, device) in enumerate([(PARENT, parent), *virtual]):
        interface = device / "net" / name
        interface.mkdir(parents=True)
        (interface / "type").write_text("32\n")
        (interface / "address").write_text(f"00:00:10:29:fe:80:{number:02x}\n")
        (interface / "device").symlink_to(device)
        (root / "class/net").mkdir(parents=True, exist_ok=True)
        (root / "class/net" / name).symlink_to(interface)
        if number:
            (parent / f"virtfn{number - 1}").symlink_to(device)
    (parent / "sriov_totalvfs").write_text(f"{count}\n")


def latency(count: int, rounds: int = 20) -> tuple[float, float]:
    """Return the median and the largest time, in ms, of CreateEndpoint and Join together.

    Args:
        count: of VFs; all are handed out in each round.
        rounds: to repeat it, at least until 128 pairs were measured.
    """
    taken = []
    with tempfile.TemporaryDirectory(prefix="rdm-bench-", dir="/tmp") as name:
        directory = Path(name)
        tree(directory / "sys", count)
        path = str(directory / "p.sock")
        server = Server(path, Driver(Tree(str(directory / "sys")), State(str(directory)), dict))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        request = {
            "NetworkID": "n",
            "Options": {GENERIC: {"netdevice": PARENT}},
            "IPv4Data": [{"Pool": "10.0.0.0/8"}],
        }
        ask(path, "NetworkDriver.CreateNetwork", request)
        for _ in range(max(1, min(rounds, 256 // count))):
            for number in range(count):
                end = {"NetworkID": "n", "EndpointID": f"e{number}"}
                began = time.perf_counter()
                ask(
                    path,
                    "NetworkDriver.CreateEndpoint",
                    {**end, "Interface": {"Address": f"10.0.0.{number}/8"}},
                )
                ask(path, "NetworkDriver.Join", end)
                taken.append((time.perf_counter() - began) * 1000)
            for number in range(count):
                ask(path, "NetworkDriver.DeleteEndpoint", {"NetworkID": "n", "EndpointID": f"e{number}"})
        server.shutdown()
        server.server_close()
    return statistics.median(taken), max(taken)


def leaks(rounds: int, containers: int) -> tuple[int, float]:
    """Return how many functions are not free after containers came and went, and the seconds that took."""
    from tests.integration.sriov_node import FUNCTIONS, sriov_node

    def live(number: int) -> None:
        node.run(f"bench{number}")
        node.remove(f"bench{number}")

    with sriov_node("20.10") as node:
        began = time.monotonic()
        for _ in range(rounds):
            with ThreadPoolExecutor(FUNCTIONS) as pool:
                list(pool.map(live, range(containers)))
        seconds = time.monotonic() - began
        held = len(node.promised())
        free = 0
        for number in range(FUNCTIONS):
            node.run(f"last{number}")
            free += 1
        node.remove(*(f"last{number}" for number in range(FUNCTIONS)))
    return held + FUNCTIONS - free, seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the network plugin rdm-sriov.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--containers", type=int, default=100)
    options = parser.parse_args()
    rows = [["VFs", "CreateEndpoint + Join, median", "largest"]]
    for count in (7, 128):
        median, largest = latency(count)
        rows.append([str(count), f"{median:.1f} ms", f"{largest:.1f} ms"])
    print(markdown(rows, words=0), flush=True)
    leaked, seconds = leaks(options.rounds, options.containers)
    print(
        f"\n{options.containers} containers started and removed {options.rounds} times in {seconds:.0f} s: "
        f"{leaked} VFs leaked."
    )


if __name__ == "__main__":
    main()
