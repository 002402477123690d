"""A cluster: the nodes of one inventory, their address plan, and what can be done with them."""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdm_provision import environment
from rdm_provision.errors import InputError, InventoryError
from rdm_provision.events import RunResult
from rdm_provision.jobs import JobVerbs
from rdm_provision.run import Run, RunSpec, error_sentence, plain

if TYPE_CHECKING:
    from ansible_collections.rdm.provision.plugins.module_utils.address_plan import AddressPlan

__all__ = ["Cluster", "CommandOutput", "Node", "NodeState", "PlanTable", "PlannedNode", "find_inventory"]

FACTS_MODULE = "rdm.provision.node_facts"
CONTAINER_MODULE = "community.docker.docker_container"
FILES_MODULE = "rdm.provision.node_files"
EXEC_MODULE = "rdm.provision.container_exec"
DEFAULT_TIMEOUT_S = 600
"""How long ``exec`` waits for a command, in seconds."""

_INVENTORY_SUFFIXES = (".yml", ".yaml", ".json", ".ini", ".toml")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_.-]+)?")
_LABEL = "rdm.provision"
PLAN_FILE = "address_plan.cfg"


@dataclass(frozen=True, slots=True)
class Node:
    """One managed host.

    Attributes:
        name: its name in the inventory.
        address: where ssh goes (``ansible_host``, or the name).
        rank: 0 for the master, then 1, 2… in the inventory's order.
        my_ip: its address on the container network by the plan file, or None when it has none yet.
        variables: what the inventory says about it, groups included, untemplated.
    """

    name: str
    address: str
    rank: int
    my_ip: str | None
    variables: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """One line of the address plan. ``note`` is ``new``, ``kept``, ``moved``, ``pinned`` or ``removed``."""

    rank: int | None
    node: str
    address: str
    my_ip: str
    slots: int | None
    note: str


@dataclass(frozen=True, slots=True)
class PlanTable:
    """The address plan of a cluster, and how it differs from the plan file.

    Attributes:
        cluster: the cluster's name.
        subnet: the container network, as CIDR.
        gateway: its gateway.
        file: the plan file.
        nodes: the nodes by rank, then removed nodes whose address is reserved.
        saved: the plan file says the same.
        warnings: what is allowed but unwise.
    """

    cluster: str
    subnet: str
    gateway: str
    file: Path
    nodes: tuple[PlannedNode, ...]
    saved: bool
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The plan as what ``--json`` prints."""
        from rdm_provision.events import to_json

        keys = ("cluster", "subnet", "gateway", "file", "nodes", "saved", "warnings")
        return {"ok": True, "exit_code": 0, **{key: to_json(getattr(self, key)) for key in keys}}


@dataclass(frozen=True, slots=True)
class NodeState:
    """What runs on a node, as ``status`` found it.

    Attributes:
        node: its name.
        reachable: its facts could be read.
        my_ip: its planned address.
        container_ip: the address its container has on the container network.
        engine: version of Docker Engine.
        container: name and state of the training container, as ``rdm (running)``.
        image: the image the container was made from.
        network: name and driver of the container network, as ``ibnet (sriov)``.
        plugin: state of the SR-IOV plugin's container; empty where there is none.
        accelerator: ``rocm``, ``cuda`` or ``cpu``, as found.
        remarks: what is not as it should be, each in one line.
    """

    node: str
    reachable: bool
    my_ip: str
    container_ip: str = ""
    engine: str = ""
    container: str = ""
    image: str = ""
    network: str = ""
    plugin: str = ""
    accelerator: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Everything is there and as planned."""
        return self.reachable and not self.remarks


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """How a command ended in the container of one node.

    Attributes:
        node: its name.
        rc: the exit code, or None when it did not run.
        stdout: what it wrote.
        stderr: what it wrote to stderr.
        error: why it failed or did not run, in one line.
    """

    node: str
    rc: int | None
    stdout: str = ""
    stderr: str = ""
    error: str = ""


def find_inventory(start: Path | None = None) -> Path:
    """Return the inventory to use when none is named: ``inventory/lab``, or the only one in ``inventory/``.

    Args:
        start: folder to look from; default: the current one.

    Raises:
        InputError: there is none, or more than one.
    """
    folder = (start or Path.cwd()) / "inventory"
    if (folder / "lab").is_dir() and _holds_hosts(folder / "lab"):
        return folder / "lab"
    found = sorted(p for p in folder.iterdir() if _holds_hosts(p)) if folder.is_dir() else []
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(
            "no inventory: there is none in ./inventory",
            hint="name yours with -i PATH, or make a lab: rdm-provision lab up",
        )
    names = ", ".join(f"inventory/{path.name}" for path in found)
    raise InputError(f"which inventory? There are {names}", hint="name one with -i PATH or RDM_INVENTORY")


def _holds_hosts(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".") and any(path.glob("hosts*"))


class Cluster(JobVerbs):
    """The nodes of one inventory and everything that can be done with them.

    >>> cluster = Cluster.load("inventory/lab")  # doctest: +SKIP
    >>> [node.name for node in cluster.nodes]  # doctest: +SKIP
    ['node1', 'node2', 'node3']
    >>> with cluster.up() as run:  # doctest: +SKIP
    ...     for event in run:
    ...         print(event)
    >>> run.result().exit_code  # doctest: +SKIP
    0

    Attributes:
        name: the cluster's name (``rdm_cluster``).
        inventory: the inventory's path.
        home: the inventory's folder, where the address plan and ``.rdm`` lie.
        nodes: the master, then the workers in the inventory's order.
    """

    def __init__(
        self,
        inventory: Path,
        groups: Mapping[str, Sequence[str]],
        hostvars: Mapping[str, Mapping[str, Any]],
        extra_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a cluster of an inventory that is already read; :meth:`load` reads one."""
        self.inventory = inventory
        self.home = inventory if inventory.is_dir() else inventory.parent
        self.extra_vars = dict(extra_vars or {})
        self._groups = groups
        self._hostvars = {name: {**values, **self.extra_vars} for name, values in hostvars.items()}
        order = list(dict.fromkeys([*groups.get("master", ()), *groups.get("workers", ())]))
        previous = self._plan_file()
        self.nodes: tuple[Node, ...] = tuple(
            Node(
                name=name,
                address=str(self._hostvars[name].get("ansible_host", name)),
                rank=rank,
                my_ip=previous.nodes.get(name) if previous else None,
                variables=self._hostvars[name],
            )
            for rank, name in enumerate(order)
        )
        first = self.nodes[0].variables if self.nodes else {}
        self.name = str(first.get("rdm_cluster", "rdm"))

    # --- reading ---------------------------------------------------------------------------------------

    @classmethod
    def load(
        cls, inventory: str | Path | None = None, *, extra_vars: Mapping[str, Any] | None = None
    ) -> Cluster:
        """Read an inventory. No node is touched.

        Args:
            inventory: path of an inventory folder or file; default: see :func:`find_inventory`.
            extra_vars: variables that win over the inventory's.

        Raises:
            InputError: no inventory was named and none was found.
            InventoryError: it is missing, cannot be parsed, or has no nodes.

        >>> Cluster.load("inventory/lab").name  # doctest: +SKIP
        'rdm'
        """
        path = Path(inventory) if inventory is not None else find_inventory()
        if not path.exists():
            raise InventoryError(f"there is no inventory at {path}", hint=_similar_inventories(path))
        listing = _ansible_inventory(path)
        hostvars: dict[str, dict[str, Any]] = listing.pop("_meta", {}).get("hostvars", {})
        groups = {name: _members(name, listing) for name in listing}
        for name in {host for hosts in groups.values() for host in hosts}:
            hostvars.setdefault(name, {})
        cluster = cls(path, groups, hostvars, extra_vars)
        if not cluster.nodes:
            raise InventoryError(
                f"{path} has no host in the groups master and workers",
                hint="put one host into the group master and the others into workers",
            )
        return cluster

    def _plan_file(self) -> AddressPlan | None:
        """Return the plan in the plan file, None also when that is broken: a run refuses it, and says why."""
        environment.make_importable()
        from ansible_collections.rdm.provision.plugins.module_utils import address_plan

        file = self.home / PLAN_FILE
        try:
            return address_plan.read_plan(str(file))
        except address_plan.PlanFileError:
            return None

    def node(self, name: str) -> Node:
        """Return the node called NAME.

        Raises:
            InputError: there is none; the message names the closest.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise InputError(f"there is no node {name!r} in {self.inventory}", hint=self._did_you_mean(name))

    def select(self, limit: str) -> tuple[str, ...]:
        """Return the names of the nodes that LIMIT (Ansible's ``--limit`` pattern) selects, by rank.

        Every part of the pattern must match something: a part with a typo is an error, not a warning.

        Raises:
            InputError: a part, or the whole, matches no node.
        """
        names = [node.name for node in self.nodes]
        if not limit:
            return tuple(names)
        parts = [part for part in re.split(r"[,:](?![^\[]*\])|\s+", limit) if part]
        if any(part.startswith(("~", "@")) or "[" in part for part in parts):
            # A regular expression, a file or a slice: Ansible will say.
            return tuple(names)
        wanted: set[str] = set()
        if all(part[0] in "!&" for part in parts):
            wanted = set(names)
        for part in sorted(parts, key=lambda part: "!&".find(part[0])):
            matched = self._matching(part.lstrip("!&"), names)
            if part.startswith("!"):
                wanted -= matched
            elif part.startswith("&"):
                wanted &= matched
            else:
                wanted |= matched
        if not wanted:
            raise InputError(f"--limit {limit} leaves no node")
        return tuple(name for name in names if name in wanted)

    def _matching(self, pattern: str, names: Sequence[str]) -> set[str]:
        matched = {name for name in names if fnmatch.fnmatchcase(name, pattern)}
        for group, members in self._groups.items():
            if fnmatch.fnmatchcase(group, pattern):
                matched |= set(members) & set(names)
        if pattern == "all":
            matched = set(names)
        if not matched:
            raise InputError(
                f"--limit: {pattern!r} is neither a node nor a group of {self.inventory}",
                hint=self._did_you_mean(pattern),
            )
        return matched

    def _did_you_mean(self, name: str) -> str:
        known = [node.name for node in self.nodes]
        groups = [group for group in self._groups if group not in ("all", "ungrouped")]
        if close := difflib.get_close_matches(name, [*known, *groups], n=3):
            return f"did you mean {' or '.join(close)}?"
        shown = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
        return f"the nodes are {shown}"

    # --- the address plan ------------------------------------------------------------------------------

    def plan(self, *, save: bool = False, release: Iterable[str] = ()) -> PlanTable:
        """Return the address plan, without touching any node.

        Args:
            save: write it to the plan file.
            release: removed nodes whose reserved addresses may be given away again; saves as well.

        Raises:
            InventoryError: the plan cannot be made, or a node in RELEASE has no reserved address.
                Nothing is written; ``problems`` has every reason.
            ClusterBusyError: another run is changing this cluster.

        >>> table = Cluster.load("inventory/lab").plan()  # doctest: +SKIP
        >>> table.nodes[0].my_ip  # doctest: +SKIP
        '192.169.16.100'
        """
        release = list(release)
        save = save or bool(release)
        literal = {"plan_release": release} if release else {}
        run = self._run(
            "plan", "plan", "", "", 0, 0, exclusive=save, extra={"plan_write": save}, literal=literal
        )
        result = run.result()
        if result.refused:
            undone = ", so nothing was released" if release else ""
            raise InventoryError(f"the address plan cannot be made{undone}", problems=result.problems)
        if result.plan is None:
            why = next((recap.why for recap in result.nodes.values() if recap.why), result.message)
            raise InventoryError(f"the address plan cannot be made: {why}")
        return PlanTable(
            cluster=str(result.plan["cluster"]),
            subnet=str(result.plan["subnet"]),
            gateway=str(result.plan["gateway"]),
            file=self.home / PLAN_FILE,
            nodes=tuple(_lines(result.plan)),
            saved=bool(result.plan["saved"]),
            warnings=tuple(result.warnings),
        )

    @property
    def is_lab(self) -> bool:
        """Whether this is a miniature cluster made by ``rdm-provision lab up``."""
        return (self.home / ".rdm" / "lab").is_dir()

    @property
    def names(self) -> tuple[str, ...]:
        """The names that ``limit`` understands: nodes, then groups."""
        groups = [name for name in self._groups if name not in ("all", "ungrouped")]
        return (*(node.name for node in self.nodes), *groups)

    # --- runs ------------------------------------------------------------------------------------------

    def up(
        self,
        *,
        limit: str = "",
        tags: str = "",
        forks: int = 0,
        verbosity: int = 0,
    ) -> Run:
        """Bring the cluster up: images, network, MY_IP, containers, hostfile, and a check of the fabric.

        Args:
            limit: only these nodes (Ansible's ``--limit`` pattern).
            tags: only the parts with one of these tags.
            forks: how many nodes at once; 0 for min(50, nodes).
            verbosity: how much ansible-playbook says in the record.

        Raises:
            InputError: LIMIT matches no node.
            ClusterBusyError: (when started) another run is changing this cluster.

        >>> Cluster.load("inventory/lab").up().result().exit_code  # doctest: +SKIP
        0
        """
        keep = frozenset({CONTAINER_MODULE})
        return self._run("up", "site", limit, tags, forks, verbosity, exclusive=True, diff=True, keep=keep)

    def check(self, *, limit: str = "", tags: str = "", forks: int = 0, verbosity: int = 0) -> Run:
        """Find out what :meth:`up` would change on each node, down to the lines of files. Changes nothing.

        The result's ``changed`` names the nodes that drifted, and each node's ``changes`` say how.
        Arguments and errors are those of :meth:`up`.

        >>> Cluster.load("inventory/lab").check().result().changed  # doctest: +SKIP
        ()
        """
        return self._run("check", "site", limit, tags, forks, verbosity, check=True, diff=True)

    def verify(self, *, limit: str = "", forks: int = 0, verbosity: int = 0) -> Run:
        """Measure the fabric between all pairs of containers. The result's ``fabric`` is the table.

        Arguments and errors are those of :meth:`up`.

        >>> Cluster.load("inventory/lab").verify().result().fabric["verdicts"]  # doctest: +SKIP
        {'node1': {'ok': True, 'reason': ''}}
        """
        return self._run("verify", "verify", limit, "", forks, verbosity)

    def down(
        self, *, images: bool = False, limit: str = "", tags: str = "", forks: int = 0, verbosity: int = 0
    ) -> Run:
        """Take away what :meth:`up` made, and nothing else: what does not carry our label stays.

        Args:
            images: remove the images as well.

        The other arguments and the errors are those of :meth:`up`.

        >>> Cluster.load("inventory/lab").down().result().exit_code  # doctest: +SKIP
        0
        """
        extra = {"images_remove": True} if images else {}
        keep = frozenset({FILES_MODULE})
        return self._run(
            "down", "clean", limit, tags, forks, verbosity, exclusive=True, extra=extra, keep=keep
        )

    def status(self, *, limit: str = "", forks: int = 0, verbosity: int = 0) -> Run:
        """Look at what runs where, read-only. :meth:`states` turns the result into one record per node.

        Arguments and errors are those of :meth:`up`.

        >>> cluster = Cluster.load("inventory/lab")  # doctest: +SKIP
        >>> [(s.node, s.container) for s in cluster.states(cluster.status().result())]  # doctest: +SKIP
        [('node1', 'rdm (running)')]
        """
        return self._run("status", "status", limit, "", forks, verbosity, keep=frozenset({FACTS_MODULE}))

    def exec(
        self,
        argv: Sequence[str],
        *,
        limit: str = "",
        user: str = "",
        timeout: float = DEFAULT_TIMEOUT_S,
        forks: int = 0,
        verbosity: int = 0,
    ) -> Run:
        """Run a command in the training containers. :meth:`outputs` turns the result into one per node.

        Args:
            argv: the command and its arguments; no shell looks at them.
            limit: only on these nodes.
            user: as this user of the container; default: the container's own.
            timeout: seconds after which the wait ends and the node counts as failed.

        The other arguments and the errors are those of :meth:`up`.

        >>> cluster = Cluster.load("inventory/lab")  # doctest: +SKIP
        >>> [o.stdout for o in cluster.outputs(cluster.exec(["hostname"]).result())]  # doctest: +SKIP
        ['node1\\n']
        """
        if not argv:
            raise InputError("there is no command to run", hint="rdm-provision exec -- COMMAND ARGUMENT…")
        if user and not _USER.fullmatch(user):
            raise InputError(f"{user!r} is not a user of a container", hint="give a name, or uid:gid")
        extra: dict[str, Any] = {"exec_timeout": timeout}
        if user:
            extra["exec_user"] = user
        return self._run(
            "exec",
            "exec",
            limit,
            "",
            forks,
            verbosity,
            keep=frozenset({EXEC_MODULE}),
            extra=extra,
            literal={"exec_argv": argv},
        )

    def _run(
        self,
        verb: str,
        playbook: str,
        limit: str,
        tags: str,
        forks: int,
        verbosity: int,
        *,
        check: bool = False,
        diff: bool = False,
        exclusive: bool = False,
        keep: frozenset[str] = frozenset(),
        extra: Mapping[str, Any] | None = None,
        literal: Mapping[str, Sequence[str]] | None = None,
    ) -> Run:
        return Run(
            RunSpec(
                verb=verb,
                playbook=playbook,
                inventory=str(self.inventory),
                nodes=self.select(limit),
                limit=limit,
                tags=tags,
                extra_vars={**self.extra_vars, **(extra or {})},
                literal_vars=literal or {},
                check=check,
                diff=diff,
                forks=forks,
                verbosity=verbosity,
                home=self.home,
                exclusive=exclusive,
                keep=keep,
            )
        )

    # --- what runs found -------------------------------------------------------------------------------

    def states(self, result: RunResult) -> tuple[NodeState, ...]:
        """Return the state of each node that a :meth:`status` run looked at."""
        facts = result.returned.get(FACTS_MODULE, {})
        plan = result.plan or {"cluster": self.name, "nodes": {}}
        return tuple(
            _state(name, plan, recap.why, _last(facts.get(name)).get("node"))
            for name, recap in result.nodes.items()
        )

    def containers(self, result: RunResult) -> tuple[tuple[str, str, str, str], ...]:
        """Return what an :meth:`up` run left running: node, container with its state, image, address."""
        found = []
        for name, results in result.returned.get(CONTAINER_MODULE, {}).items():
            for res in results:
                made = res.get("container") or {}
                labels = (made.get("Config") or {}).get("Labels") or {}
                if labels.get(f"{_LABEL}.role") != "container":
                    continue
                state = str((made.get("State") or {}).get("Status", ""))
                my_ip = ((result.plan or {}).get("nodes", {}).get(name) or {}).get("my_ip", "")
                called = str(made.get("Name", "")).lstrip("/")
                found.append((name, f"{called} ({state})", str(made["Config"].get("Image", "")), str(my_ip)))
        order = {node.name: node.rank for node in self.nodes}
        return tuple(sorted(found, key=lambda line: order.get(line[0], 0)))

    def kept(self, result: RunResult) -> dict[str, tuple[str, ...]]:
        """Return what a :meth:`down` run left because of what is in it: directory → nodes."""
        found: dict[str, list[str]] = {}
        for name, results in result.returned.get(FILES_MODULE, {}).items():
            removed = {path for res in results for path in res.get("paths", ())}
            kept = dict.fromkeys(path for res in results for path in res.get("kept", ()))
            for path in kept:
                # A directory counts, not the ones above it.
                if path not in removed and not any(other.startswith(f"{path}/") for other in kept):
                    found.setdefault(path, []).append(name)
        return {path: tuple(nodes) for path, nodes in found.items()}

    def outputs(self, result: RunResult) -> tuple[CommandOutput, ...]:
        """Return what the command of an :meth:`exec` run wrote, by node."""
        returned = result.returned.get(EXEC_MODULE, {})
        return tuple(
            _output(name, recap.why, _last(returned.get(name))) for name, recap in result.nodes.items()
        )


def _state(name: str, plan: Mapping[str, Any], why: str, facts: Mapping[str, Any] | None) -> NodeState:
    """Compare what a node says of itself with the plan; a new node has no address before it is saved."""
    planned_node = plan["nodes"].get(name) or {}
    planned = "" if planned_node.get("note") == "new" else str(planned_node.get("my_ip", ""))
    if facts is None:
        return NodeState(name, reachable=False, my_ip=planned, remarks=(why or "not looked at",))
    accelerator = str(facts.get("accelerator", ""))
    docker = facts.get("docker")
    if docker is None:
        remark = str(facts.get("docker_error") or "no Docker Engine")
        return NodeState(name, True, planned, accelerator=accelerator, remarks=(remark,))
    cluster = str(plan["cluster"])
    container = _ours(docker.get("containers", ()), cluster, "container")
    network = _ours(docker.get("networks", ()), cluster, "network")
    plugin = _ours(docker.get("containers", ()), cluster, "plugin")
    found = str(container["networks"].get(network["name"], "")) if container and network else ""
    return NodeState(
        name,
        reachable=True,
        my_ip=planned,
        container_ip=found,
        engine=str(docker.get("version", "")),
        container=f"{container['name']} ({container['state']})" if container else "",
        image=str(container.get("image", "")) if container else "",
        network=f"{network['name']} ({network['driver']})" if network else "",
        plugin=str(plugin["state"]) if plugin else "",
        accelerator=accelerator,
        remarks=tuple(_remarks(planned, found, container, network, plugin)),
    )


def _last(results: Sequence[Mapping[str, Any]] | None) -> Mapping[str, Any]:
    return results[-1] if results else {}


def _output(name: str, why: str, res: Mapping[str, Any]) -> CommandOutput:
    if res.get("rc") is None:
        return CommandOutput(name, None, error=why or "it did not run")
    stdout, stderr = str(res.get("stdout", "")), str(res.get("stderr", ""))
    return CommandOutput(name, int(res["rc"]), stdout, stderr, error=why)


def _ours(things: Iterable[Mapping[str, Any]], cluster: str, role: str) -> Mapping[str, Any] | None:
    """Return the container or network with our labels, if there is one."""
    wanted = {f"{_LABEL}.cluster": cluster, f"{_LABEL}.role": role}
    return next((t for t in things if wanted.items() <= (t.get("labels") or {}).items()), None)


def _remarks(
    planned: str,
    found: str,
    container: Mapping[str, Any] | None,
    network: Mapping[str, Any] | None,
    plugin: Mapping[str, Any] | None,
) -> Iterator[str]:
    if not planned:
        yield "no address planned yet"
    if network is None:
        yield "no container network"
    if container is None:
        yield "no training container"
    elif container.get("state") != "running":
        yield f"the container is {container.get('state')}"
    elif network is not None and not found:
        yield f"the container is not on {network['name']}"
    elif found and planned and found != planned:
        yield f"the container has {found} instead of {planned}"
    if plugin is not None and plugin.get("state") != "running":
        yield f"the SR-IOV plugin is {plugin.get('state')}"
    elif plugin is None and network is not None and network.get("driver") == "sriov":
        yield "the SR-IOV plugin is missing"


def _lines(plan: Mapping[str, Any]) -> Iterator[PlannedNode]:
    """Yield the lines of the table: the nodes by rank, then those whose addresses are reserved."""
    for name, node in plan["nodes"].items():
        yield PlannedNode(
            int(node["rank"]),
            name,
            str(node["address"]),
            str(node["my_ip"]),
            int(node["slots"]),
            str(node["note"]),
        )
    for name, my_ip in plan["removed"].items():
        yield PlannedNode(None, name, "", str(my_ip), None, "removed")


# --- reading an inventory -------------------------------------------------------------------------------


def _similar_inventories(path: Path) -> str:
    with contextlib.suppress(OSError):
        beside = [entry.name for entry in path.parent.iterdir() if not entry.name.startswith(".")]
        if close := difflib.get_close_matches(path.name, beside, n=1):
            return f"did you mean {path.parent / close[0]}?"
    return "make a lab with: rdm-provision lab up" if path.name == "lab" else "check the path after -i"


def _ansible_inventory(path: Path) -> dict[str, Any]:
    """Return what ``ansible-inventory --list`` says."""
    import os

    argv = [environment.program("ansible-inventory"), "-i", str(path.resolve()), "--list"]
    env = {**os.environ, **environment.ansible_environment()}
    done = subprocess.run(
        argv, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    unparsed = list(_unparsed(plain(done.stderr)))
    if done.returncode != 0:
        said = _parse_error(*unparsed[0]) if unparsed else _other_error(done.stderr, path)
        raise InventoryError(f"{path} cannot be read: {said}")
    for file, complaints in unparsed:
        # Ansible would go on without the nodes of this file. A key or a note that lies about is no matter.
        if file.is_file() and (file.suffix in _INVENTORY_SUFFIXES or file.stem == "hosts"):
            raise InventoryError(f"{path} cannot be read: {_parse_error(file, complaints)}")
    listing: dict[str, Any] = json.loads(done.stdout)
    return listing


def _unparsed(stderr: str) -> Iterator[tuple[Path, str]]:
    """Yield each file that no inventory plugin could read, with what the plugins said about it."""
    begin = 0
    for found in re.finditer(r"Unable to parse (.+) as an inventory source", stderr):
        yield Path(found.group(1)), stderr[begin : found.start()]
        begin = found.end()


def _parse_error(file: Path, complaints: str) -> str:
    """Return the one sentence that helps among the complaints of all inventory plugins about FILE.

    Every plugin that gives up has its say, and most of them were never meant: what counts is the one for the
    file's kind. The plugin ``auto`` is the only one that knows the line of a YAML error.
    """
    said = {
        plugin: (" ".join(message.split()).rstrip("."), origin)
        for plugin, message, origin in re.findall(
            r"Failed to parse inventory with '(\w+)' plugin: (.+?)\n\n.+?Origin: ([^\n]+)",
            complaints,
            re.DOTALL,
        )
    }
    message, origin = said.get("auto", ("", ""))
    if not message.startswith("YAML parsing failed"):
        plugin = "yaml" if file.suffix in (".yml", ".yaml", ".json") else "ini"
        message, origin = said.get(plugin, (message, ""))
    message = message.removeprefix("Failed to parse inventory: ")
    if "values to unpack" in message:
        message = "a line is neither a [group], a host nor a variable"
    where = origin if re.search(r":\d+:\d+$", origin) else str(file)
    return f"{message or 'it is no inventory'} ({where})"


def _other_error(stderr: str, path: Path) -> str:
    sentence = error_sentence(stderr) or "ansible-inventory does not say why"
    where = _bad_yaml(path) if sentence.startswith("YAML parsing failed") else ""
    return f"{sentence.rstrip('.')} ({where})" if where else sentence


def _bad_yaml(path: Path) -> str:
    """Return file, line and column of the first YAML error in the variables beside an inventory.

    Ansible does not say where it is.
    """
    import yaml

    home = path if path.is_dir() else path.parent
    for folder in ("group_vars", "host_vars"):
        for file in sorted((home / folder).rglob("*")):
            if not file.is_file() or file.suffix not in ("", ".yml", ".yaml", ".json"):
                continue
            try:
                for _ in yaml.parse(file.read_text(encoding="utf-8")):
                    pass
            except yaml.MarkedYAMLError as error:
                mark = error.problem_mark
                return f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
            except (OSError, UnicodeError, yaml.YAMLError):
                return str(file)
    return ""


def _members(group: str, listing: Mapping[str, Any], seen: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Return the hosts of GROUP and of the groups in it."""
    if group in seen:
        return ()
    entry = listing.get(group) or {}
    hosts = list(entry.get("hosts", ()))
    for child in entry.get("children", ()):
        hosts += _members(child, listing, seen | {group})
    return tuple(dict.fromkeys(hosts))
