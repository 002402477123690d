"""Measure the cost of bringing a cluster up: the original document's way, the same through pdsh, and ours.

Run `python benchmarks/provision.py` as root, or as a user of the docker group, on a quiet machine. For each
number of nodes it builds a lab and measures on it, from clean nodes:

* the original's way: one ssh after the other with its raw commands (load the image, create the network, start
  the container), node after node;
* the same raw commands through pdsh, on all nodes at once;
* our first run, our second run (without work), and our check of the finished cluster (`--check --diff`).

All load the same image archive, which every node has as on a shared file system. The raw commands do less
than our run: no check, no plan, no MY_IP in the shells, no keys, no hostfile, no verification.

It prints wall time and the CPU time of this machine's processes (ssh, pdsh, ansible-playbook). In a lab the
nodes share this machine's cores: their work is in the wall time of every way, and in the CPU time of none.
Connections are cold in every measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.tables import markdown  # noqa: E402

BIN = Path(sys.executable).parent
ADDRESS_MAP = "/srv/nodes"
MODULE_RUN = "Using module file "

# Removes from a node what any of the ways can have left.
RESET = f"""
docker ps -aq | xargs -r docker rm -f
docker network prune -f
docker images -q | sort -u | xargs -r docker rmi -f
rm -rf {ADDRESS_MAP} /var/cache/rdm
""".strip()


@dataclass(frozen=True)
class Cost:
    """The cost of one way, in seconds."""

    wall: float
    cpu: float


@dataclass
class Cluster:
    """A lab with its nodes, and the ways to bring it up."""

    name: str
    count: int
    variables: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def inventory(self) -> Path:
        """The directory of the lab's inventory."""
        return ROOT / "inventory" / self.name

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes, master first."""
        return list(self.variables)

    def up(self) -> None:
        """Build the lab, or grow the existing one."""
        run([*self._lab("up"), "-e", f"lab_nodes={self.count}"])
        listing = json.loads(run([BIN / "ansible-inventory", "-i", self.inventory, "--list"]))
        names = [*listing["master"]["hosts"], *listing["workers"]["hosts"]]
        self.variables = {name: listing["_meta"]["hostvars"][name] for name in names}

    def down(self) -> None:
        """Remove the lab."""
        run(self._lab("down"))

    def _lab(self, verb: str) -> list[object]:
        variables = json.dumps({"lab_name": self.name, "lab_directory": str(self.inventory)})
        return [BIN / "ansible-playbook", ROOT / "playbooks" / f"lab_{verb}.yml", "-e", variables]

    def each(self, work: Callable[[str], object]) -> None:
        """Call a function for all nodes at once."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(work, self.nodes))

    def on(self, node: str, script: str) -> str:
        """Run a script on a node without ssh; this is never measured."""
        return run(["docker", "exec", f"rdm-lab-{self.name}-{node}", "sh", "-c", script])

    @property
    def image(self) -> dict[str, Any]:
        """The lab's training image, as its inventory lists it."""
        wanted = self.variables[self.nodes[0]]["container_image"]
        images = self.variables[self.nodes[0]]["images_list"]
        found: dict[str, Any] = next(image for image in images if image["name"] == wanted)
        return found

    def reset(self) -> None:
        """Remove what any of the ways has left, on the nodes and next to the inventory."""
        self.playbook("clean")
        self.each(lambda node: self.on(node, RESET))
        shutil.rmtree(self.inventory / ".rdm" / "ssh", ignore_errors=True)
        (self.inventory / "address_plan.cfg").unlink(missing_ok=True)

    # ---- the original's way

    def raw_steps(self) -> list[str]:
        """The commands of the original document, in its order, the same for every node."""
        network = "docker network create -d macvlan --subnet=192.169.16.0/24 -o parent=ib0 ibnet"
        container = (
            f"docker run -d --name rdm --cap-add=SYS_PTRACE --ipc=host --net=ibnet "
            f'--ip="$(grep "^$(hostname) " {ADDRESS_MAP} | cut -d" " -f2)" '
            f"{self.image['name']} sleep infinity"
        )
        return [f"docker load -i {self.image['path']}", network, container]

    def write_address_map(self) -> None:
        """Put the node -> address file that the original recommends on every node."""
        lines = "".join(f"{node} 192.169.16.{100 + rank}\n" for rank, node in enumerate(self.nodes))
        self.each(lambda node: self.on(node, f"printf %s {shlex.quote(lines)} >{ADDRESS_MAP}"))

    @property
    def ssh_options(self) -> list[str]:
        """The options of ssh for any node, each time over a new connection."""
        return ["-F", str(self.inventory / ".rdm" / "lab" / "ssh_config"), "-o", "ControlPath=none"]

    def one_after_the_other(self) -> None:
        """Run each step on each node, one ssh at a time."""
        for step in self.raw_steps():
            for node in self.nodes:
                run(["ssh", *self.ssh_options, node, step])

    def through_pdsh(self) -> None:
        """Run each step on all nodes at once."""
        user = self.variables[self.nodes[0]]["ansible_user"]
        argv = ["pdsh", "-S", "-R", "ssh", "-f", str(self.count), "-l", user, "-w", ",".join(self.nodes)]
        for step in self.raw_steps():
            run([*argv, step], PDSH_SSH_ARGS_APPEND=shlex.join(self.ssh_options))

    # ---- our way

    def playbook(self, name: str, *options: str) -> str:
        """Run a playbook of the collection over new connections; return its output."""
        with tempfile.TemporaryDirectory(prefix="rdm-bench-") as sockets:
            argv = [BIN / "ansible-playbook", ROOT / "playbooks" / f"{name}.yml", "-i", self.inventory]
            fresh = json.dumps({"ansible_control_path_dir": sockets})
            try:
                return run([*argv, "--forks", self.count, "-e", fresh, *options])
            finally:
                for socket in Path(sockets).iterdir():
                    end = ["ssh", "-q", "-O", "exit", "-o", f"ControlPath={socket}", "any"]
                    subprocess.run(end, check=False, capture_output=True)

    def module_executions(self) -> float:
        """Return how many modules a run that changes nothing executes on each node."""
        return self.playbook("site", "-vvv").count(MODULE_RUN) / self.count


def run(argv: Sequence[object], **env: str) -> str:
    """Run a program; return its output, or stop the benchmark with it if it fails."""
    words = [str(word) for word in argv]
    done = subprocess.run(
        words,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def cost(work: Callable[[], object]) -> Cost:
    """Measure a call: wall time, and CPU time of the processes that it started and waited for."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before, begin = used(), time.perf_counter()
    work()
    return Cost(time.perf_counter() - begin, used() - before)


def median_cost(costs: Sequence[Cost]) -> Cost:
    """Return the cost with the median wall time."""
    ordered = sorted(costs, key=lambda one: one.wall)
    return ordered[len(ordered) // 2]


def measure(cluster: Cluster, repeats: int) -> tuple[dict[str, Cost], float]:
    """Return the cost of each way, and the module executions per node of a run that changes nothing."""
    found: dict[str, list[Cost]] = {}

    def take(way: str, work: Callable[[], object]) -> None:
        print(f"  {cluster.count} nodes, {way} ...", end="", file=sys.stderr, flush=True)
        found.setdefault(way, []).append(cost(work))
        print(f" {found[way][-1].wall:.1f} s", file=sys.stderr)

    for _ in range(repeats):
        for way, work in (
            ("raw commands, one ssh after the other", cluster.one_after_the_other),
            ("raw commands through pdsh", cluster.through_pdsh),
        ):
            cluster.reset()
            cluster.write_address_map()
            take(way, work)
        cluster.reset()
        take("our first run", lambda: cluster.playbook("site"))
        take("our second run", lambda: cluster.playbook("site"))
        take("our check", lambda: cluster.playbook("site", "--check", "--diff"))
    return {way: median_cost(costs) for way, costs in found.items()}, cluster.module_executions()


def report(results: dict[int, tuple[dict[str, Cost], float]]) -> str:
    """Return the tables."""
    rows = [["nodes", "way", "wall s", "of one ssh after the other", "controller CPU s", "CPU s per node"]]
    executions = [["nodes", "module executions per node when nothing changes"]]
    for count, (costs, per_node) in results.items():
        base = next(iter(costs.values())).wall
        for way, one in costs.items():
            numbers = [
                f"{one.wall:.1f}",
                f"{one.wall / base:.2f}",
                f"{one.cpu:.1f}",
                f"{one.cpu / count:.2f}",
            ]
            rows.append([str(count), way, *numbers])
        executions.append([str(count), f"{per_node:.1f}"])
    return f"{markdown(rows, words=2)}\n\n{markdown(executions)}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--sizes", default="2,4,8", help="numbers of nodes, with commas (default: 2,4,8)")
    parser.add_argument("--repeats", type=int, default=1, help="measurements of each way; the median counts")
    parser.add_argument("--name", default="lab-bench", help="name of the lab (default: lab-bench)")
    options = parser.parse_args()
    for program in ("pdsh", "ssh", "docker"):
        if shutil.which(program) is None:
            sys.exit(f"this benchmark needs {program}")
    results: dict[int, tuple[dict[str, Cost], float]] = {}
    with ExitStack() as stack:
        size = 0.0
        for count in map(int, options.sizes.split(",")):
            cluster = Cluster(options.name, count)
            if not results:
                stack.callback(cluster.down)
            cluster.up()
            size = int(cluster.on(cluster.nodes[0], f"stat -c %s {cluster.image['path']}")) / 2**20
            results[count] = measure(cluster, options.repeats)
    version = run(["docker", "version", "--format", "{{.Server.Version}}"]).strip()
    print(
        f"`{shlex.join(['python', 'benchmarks/provision.py', *sys.argv[1:]])}`: {os.cpu_count()} cores, "
        f"{platform.machine()}, CPython {platform.python_version()}, Docker Engine {version}, "
        f"image of {size:.0f} MiB, median of {options.repeats}.\n"
    )
    print(report(results))


if __name__ == "__main__":
    main()
