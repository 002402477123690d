"""Measure the cost of a run on the controller, with many simulated nodes.

Run `python benchmarks/scale.py`. A connection plugin simulates the nodes: it takes the module and its
parameters from what Ansible sends, and answers from a small file for each node, in the form and size of a lab
node's answers, within half a millisecond. Everything else is real: the playbook, the forks, the actions on
the controller. Neither ssh nor the work on the nodes is in these figures: a cold ssh connection takes 0.09
CPU s more, a warm one 0.005.

It measures, in this order, from fresh nodes:

* `inventory`, `plan`: `ansible-inventory --list`, and `rdm-provision plan`, which reads the same;
* `floor`: a play whose only task is `ping`, the least that one module call can cost;
* `first`: the first run, which does everything on every node;
* `second`: the second run, which has no work;
* `one`: a run after the container of one node was removed by hand;
* `unreachable`: a run while 1 % of the nodes (at least one) refuse the connection;
* `up`, `up-again`: the first and the second run through `rdm-provision up`, on fresh nodes again.

What follows a first run can be measured without it, as with `--sizes 1000 --ways second,one,up-again`: then
the nodes get the state that a first run left on two others.

It prints wall time, CPU time of all processes, module calls, skipped tasks and bytes sent per node, the peak
memory of the main processes (`rdm-provision` and Ansible), and the size of `result.json`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / ".collections"), str(ROOT)]

from ansible_collections.rdm.provision.plugins.module_utils.constants import PLAN_FILE  # noqa: E402
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses import address_plan  # noqa: E402

from benchmarks.simulated.node import CALLS, Node  # noqa: E402
from benchmarks.tables import markdown  # noqa: E402

BIN = Path(sys.executable).parent
CLUSTER = "simulated"
FLOOR = [{"name": "Ping", "hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.ping": {}}]}]
RECAP = re.compile(
    r"^(\S+) +: ok=\d+ +changed=(\d+) +unreachable=(\d+) +failed=(\d+) +skipped=(\d+)", re.MULTILINE
)
POLL_S = 0.05
SOME_UNREACHABLE = 4
"""Exit status of ansible-playbook if nodes were unreachable and nothing else failed."""


@dataclass(frozen=True)
class Ran:
    """A program that has ended.

    Attributes:
        status: its exit status.
        output: its output.
        wall: wall time in seconds.
        cpu: user and system time of all its processes, in seconds.
        memory: peak resident bytes of each main process: the program itself, and its ansible-playbook.
    """

    status: int
    output: str
    wall: float
    cpu: float
    memory: list[int]


@dataclass(frozen=True)
class Figures(Ran):
    """The cost of one run.

    Attributes:
        calls: commands that reached a node, by module.
        sent: bytes sent to the nodes.
        changed: nodes on which something was changed.
        skipped: skipped tasks of all nodes together.
        unreachable: nodes that were unreachable.
    """

    calls: Counter[str]
    sent: int
    changed: list[str]
    skipped: int
    unreachable: list[str]

    def expect(self, status: int) -> Figures:
        """Return these figures, or stop the benchmark if the exit status is another."""
        if self.status != status:
            shown = self.output.partition("PLAY RECAP")[0]
            sys.exit(f"it ended with {self.status} instead of {status}:\n{shown[-4000:]}")
        return self


class Cluster:
    """Simulated nodes in a directory, with their inventory.

    Args:
        directory: for all files.
        count: the number of nodes.
        latency: of each command, in seconds.
    """

    def __init__(self, directory: Path, count: int, latency: float = 0.0) -> None:
        """Make the nodes and the inventory."""
        self.directory = directory
        self.nodes = [f"n{number}" for number in range(1, count + 1)]
        self.state = directory / "state"
        self.inventory = directory / "inventory"
        self.inventory.mkdir(parents=True)
        self.reset()
        addresses = {
            name: {"ansible_host": f"10.{rank // 62500 + 1}.{rank // 250 % 250}.{rank % 250 + 1}"}
            for rank, name in enumerate(self.nodes)
        }
        master = {self.nodes[0]: addresses.pop(self.nodes[0])}
        variables = {
            "ansible_connection": "simulated",
            # ansible.cfg sets it for ssh only.
            "ansible_pipelining": True,
            "ansible_python_interpreter": "/usr/bin/python3",
            # The thread pool may query these nodes like those of ssh.
            "preflight_threaded_connections": ["simulated"],
            "simulated_directory": str(self.state),
            "simulated_latency": latency,
            "rdm_cluster": CLUSTER,
            "rdm_accelerator": "cpu",
            "network_driver": "macvlan",
            "container_memlock_required": False,
            "images_list": [{"name": "training:1", "source": "archive", "path": "/shared/training.tar"}],
        }
        groups = {"master": {"hosts": master}, "workers": {"hosts": addresses}}
        text = json.dumps({"all": {"vars": variables, "children": groups}}, indent=1)
        (self.inventory / "hosts.yml").write_text(text, encoding="utf-8")
        (directory / "ping.yml").write_text(json.dumps(FLOOR), encoding="utf-8")

    def reset(self) -> None:
        """Reset all nodes, and remove the plan."""
        shutil.rmtree(self.state, ignore_errors=True)
        self.state.mkdir()
        shutil.rmtree(self.inventory / ".rdm", ignore_errors=True)
        (self.inventory / PLAN_FILE).unlink(missing_ok=True)

    def start_after_first_run(self, model: Cluster) -> None:
        """Give all nodes the state after a first run, from the model's nodes, and plan their addresses."""
        self.reset()
        self.playbook("plan", "-e", "plan_write=true").expect(0)
        plan = address_plan.read_plan(str(self.inventory / PLAN_FILE))
        if plan is None:
            raise RuntimeError("the playbook plan has kept no plan")
        for name, my_ip in plan.nodes.items():
            node = Node(self.state, name)
            node.state = Node(model.state, model.nodes[-1]).state
            node.move(my_ip, str(plan.subnet), plan.gateway)
            node.save()
        keys = Path(".rdm", "ssh")
        shutil.copytree(model.inventory / keys, self.inventory / keys)
        theirs = address_plan.read_plan(str(model.inventory / PLAN_FILE))
        if theirs:
            address_plan.write_plan(str(self.inventory / PLAN_FILE), plan._replace(keys=theirs.keys))

    def remove_container(self, name: str) -> None:
        """Remove the container of a node, as if by hand."""
        node = Node(self.state, name)
        node.kind("containers").clear()
        node.save()

    def own_variables(self, name: str, **variables: object) -> None:
        """Give a node variables of its own in the inventory."""
        path = self.inventory / "hosts.yml"
        inventory = json.loads(path.read_text(encoding="utf-8"))
        for group in inventory["all"]["children"].values():
            if name in group["hosts"]:
                group["hosts"][name].update(variables)
        path.write_text(json.dumps(inventory, indent=1), encoding="utf-8")

    def break_node(self, name: str, how: str) -> None:
        """Make a node fail every module (``broken``), or never answer the thread pool (``hanging``)."""
        node = Node(self.state, name)
        node.state[how] = True
        node.save()

    def unreachable(self, names: Sequence[str], unreachable: bool) -> None:
        """Make nodes unreachable, or reachable again."""
        for name in names:
            node = Node(self.state, name)
            node.state["unreachable"] = unreachable
            node.save()

    def playbook(self, name: str | Path = "site", *options: str) -> Figures:
        """Run a playbook of the collection, or the one at a path."""
        path = name if isinstance(name, Path) else ROOT / "playbooks" / f"{name}.yml"
        return self.run([BIN / "ansible-playbook", path, "-i", self.inventory, *options])

    def list_inventory(self) -> Figures:
        """Run `ansible-inventory --list`."""
        return self.run([BIN / "ansible-inventory", "-i", self.inventory, "--list"])

    def plan(self) -> Figures:
        """Run `rdm-provision plan`."""
        return self.run([BIN / "rdm-provision", "plan", "--inventory", self.inventory])

    def up(self) -> Figures:
        """Run `rdm-provision up`."""
        return self.run([BIN / "rdm-provision", "up", "--inventory", self.inventory])

    @property
    def newest_result(self) -> Path:
        """Return the newest `result.json` of `rdm-provision`."""
        return max((self.inventory / ".rdm" / "runs").glob("*/result.json"))

    @property
    def result_bytes(self) -> int:
        """Return its size."""
        return self.newest_result.stat().st_size

    def run(self, argv: Sequence[object]) -> Figures:
        """Run a program of ours on the simulated nodes and measure it."""
        calls = self.state / CALLS
        calls.unlink(missing_ok=True)
        env = os.environ | {
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".collections"),
            "ANSIBLE_CONNECTION_PLUGINS": str(ROOT / "benchmarks" / "simulated" / "connection"),
            "PYTHONPATH": str(ROOT),
        }
        ran = self.execute([str(word) for word in argv], env)
        commands = [line.split() for line in calls.read_text().splitlines()] if calls.exists() else []
        recap = [(name, *map(int, numbers)) for name, *numbers in RECAP.findall(ran.output)]
        return Figures(
            **vars(ran),
            calls=Counter(module for _, module, _, _ in commands),
            sent=sum(int(sent) for _, _, sent, _ in commands),
            changed=[name for name, changed, *_ in recap if changed],
            skipped=sum(skipped for *_, skipped in recap),
            unreachable=[name for name, _, unreachable, *_ in recap if unreachable],
        )

    def execute(self, argv: Sequence[str], env: Mapping[str, str]) -> Ran:
        """Run a program and measure it."""
        memory: dict[int, int] = {}
        with (self.directory / "output").open("w+b") as output:
            before, begin = _cpu(), time.perf_counter()
            process = subprocess.Popen(
                argv,
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            while process.poll() is None:
                for pid in _main_processes(process.pid):
                    memory[pid] = _peak(pid) or memory.get(pid, 0)
                time.sleep(POLL_S)
            wall, cpu = time.perf_counter() - begin, _cpu() - before
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
        return Ran(process.returncode, text, wall, cpu, list(memory.values()))


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _main_processes(pid: int) -> Iterator[int]:
    """Yield a process, and the ansible-playbook that it started if it is not one itself."""
    yield pid
    if not _is_ansible(pid):
        yield from (child for child in _children(pid) if _is_ansible(child))


def _is_ansible(pid: int) -> bool:
    try:
        return b"ansible-playbook" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    try:
        files = list(Path(f"/proc/{pid}/task").glob("*/children"))
        return [int(child) for file in files for child in file.read_text().split()]
    except OSError:
        return []


def _peak(pid: int) -> int:
    """Return a process's peak resident memory so far, in bytes; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def _nothing(_cluster: Cluster) -> None:
    pass


@dataclass(frozen=True)
class Way:
    """One measurement: its name in the table, what precedes it unmeasured, and what is measured."""

    title: str
    run: Callable[[Cluster], Figures]
    before: Callable[[Cluster], None] = _nothing
    after: Callable[[Cluster], None] = _nothing
    status: int = 0
    follows: str = ""


def _percent(cluster: Cluster) -> list[str]:
    return cluster.nodes[-max(1, len(cluster.nodes) // 100) :]


WAYS = {
    "inventory": Way("`ansible-inventory`", Cluster.list_inventory),
    "plan": Way("`plan`", Cluster.plan),
    "floor": Way("only ping", lambda cluster: cluster.playbook(cluster.directory / "ping.yml")),
    "first": Way("first run", Cluster.playbook, before=Cluster.reset),
    "second": Way("second run", Cluster.playbook, follows="first"),
    "one": Way(
        "one node changed",
        Cluster.playbook,
        before=lambda cluster: cluster.remove_container(cluster.nodes[-1]),
        follows="first",
    ),
    "unreachable": Way(
        "1 % unreachable",
        Cluster.playbook,
        before=lambda cluster: cluster.unreachable(_percent(cluster), True),
        after=lambda cluster: cluster.unreachable(_percent(cluster), False),
        status=SOME_UNREACHABLE,
        follows="first",
    ),
    "up": Way("`up`, first", Cluster.up, before=Cluster.reset),
    "up-again": Way("`up`, second", Cluster.up, follows="up"),
}


def measure(cluster: Cluster, ways: Sequence[str], model: Callable[[], Cluster]) -> Iterator[list[str]]:
    """Yield a row of the table for each way, or stop the benchmark if a run does not end as it should.

    Args:
        cluster: the cluster.
        ways: the measurements, one after the other.
        model: returns a cluster after its first run; called if the first run is not measured.
    """
    count = len(cluster.nodes)
    state_of_nodes = ""
    for name in ways:
        way = WAYS[name]
        if way.follows and state_of_nodes not in (way.follows, "all"):
            cluster.start_after_first_run(model())
            state_of_nodes = "all"
        elif not way.follows:
            state_of_nodes = name
        print(f"  {count} nodes, {way.title} ...", end="", file=sys.stderr, flush=True)
        way.before(cluster)
        found = way.run(cluster)
        way.after(cluster)
        memory = " + ".join(f"{size / 1e6:.0f}" for size in found.memory)
        print(f" {found.wall:.1f} s, {found.cpu:.1f} CPU s, {memory} MB", file=sys.stderr)
        found.expect(way.status)
        ours = name.startswith("up")
        yield [
            f"{count:,}",
            way.title,
            f"{found.wall:.1f}",
            f"{found.cpu:.1f}",
            f"{found.cpu / count:.3f}",
            f"{found.calls.total() / count:.2f}",
            "" if ours else f"{found.skipped / count:.2f}",
            f"{found.sent / count / 1000:.0f}",
            memory,
            f"{cluster.result_bytes / 1e6:.2f}" if ours else "",
        ]


HEADING = [
    "nodes",
    "run",
    "wall s",
    "CPU s",
    "CPU s per node",
    "module calls per node",
    "skipped tasks per node",
    "kB sent per node",
    "main processes MB",
    "result.json MB",
]


def chosen(text: str) -> list[str]:
    """Return the ways of a list with commas, in the order in which they are measured.

    Raises:
        argparse.ArgumentTypeError: there is no such way.
    """
    wanted = set(text.split(","))
    if unknown := wanted - set(WAYS):
        raise argparse.ArgumentTypeError(f"no way is called {min(unknown)!r}; there are {', '.join(WAYS)}")
    return [name for name in WAYS if name in wanted]


def sizes(text: str) -> list[int]:
    """Return the numbers of a list with commas.

    Raises:
        argparse.ArgumentTypeError: one is not a number above 1.
    """
    numbers = text.split(",")
    if wrong := [one for one in numbers if not one.isdecimal() or int(one) < 2]:
        raise argparse.ArgumentTypeError(
            f"{wrong[0]!r} is no number of nodes; give 2 or more, for example 8,100"
        )
    return [int(one) for one in numbers]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--sizes", type=sizes, default="8,100", help="numbers of nodes, with commas (8,100)")
    parser.add_argument(
        "--ways", type=chosen, default=",".join(WAYS), help=f"what to measure ({','.join(WAYS)})"
    )
    parser.add_argument(
        "--latency", type=float, default=0.0, help="seconds that each command takes longer (0)"
    )
    options = parser.parse_args()
    rows = [HEADING]
    with tempfile.TemporaryDirectory(prefix="rdm-scale-") as directory:

        @functools.cache
        def model() -> Cluster:
            cluster = Cluster(Path(directory, "model"), 2)
            cluster.playbook().expect(0)
            return cluster

        for count in options.sizes:
            cluster = Cluster(Path(directory, str(count)), count, options.latency)
            rows += measure(cluster, options.ways, model)
    print(
        f"`{shlex.join(['python', 'benchmarks/scale.py', *sys.argv[1:]])}`: {os.cpu_count()} cores, "
        f"{platform.machine()}, CPython {platform.python_version()}, simulated nodes.\n"
    )
    print(markdown(rows, words=2))


if __name__ == "__main__":
    main()
