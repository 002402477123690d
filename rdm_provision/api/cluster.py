"""A cluster: the nodes of one inventory, their address plan, and what can be done with them."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rdm_provision import environment
from rdm_provision.api.arguments import words
from rdm_provision.api.jobs import JobVerbs
from rdm_provision.api.run_options import RunOptions
from rdm_provision.constants import CLUSTER, PLAN_FILE, RUNTIME_CONTAINER, RUNTIME_HOST, STATE_DIR
from rdm_provision.errors import InputError, InventoryError
from rdm_provision.results import outcomes
from rdm_provision.results.events import RunResult
from rdm_provision.results.node_state import NodeState
from rdm_provision.results.outcomes import (
    CONTAINER_MODULE,
    EXEC_MODULE,
    FACTS_MODULE,
    FILES_MODULE,
    SLURM_NODES_MODULE,
    SLURM_PLAN_MODULE,
    CommandOutput,
    SlurmAnswer,
)
from rdm_provision.results.plan_table import PlanTable, planned_nodes
from rdm_provision.runner.inventory import (
    find_inventory,
    members_of,
    read_inventory,
    read_with_plan,
    require_one,
    similar_inventories,
)
from rdm_provision.runner.parts import check_tags
from rdm_provision.runner.run import Run
from rdm_provision.runner.run_spec import RunSpec
from rdm_provision.runner.selection import nearest_node, select
from rdm_provision.runner.vault import password_file, password_in_memory

if TYPE_CHECKING:
    from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.address_plan import AddressPlan

DEFAULT_TIMEOUT_S = 600
"""How long ``exec`` waits for a command, in seconds."""

_WITHOUT_NODES = frozenset(
    {"train", "job_config", "job_data", "jobs", "logs", "prune", "slurm_status", "stop"}
)
"""The playbooks for a cluster that only submits jobs to somebody else's Slurm."""

_SIZE = re.compile(r"[1-9][0-9]*[MG]")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_.-]+)?")


@dataclass(frozen=True, slots=True)
class Node:
    """One managed host.

    Attributes:
        name: its name in the inventory.
        address: where ssh goes (``ansible_host``, or the name).
        rank: 0 for the master, then 1, 2… in the inventory's order.
        my_ip: its address on the container network in the plan file, or None if it has none yet.
        variables: its variables in the inventory, groups' included, untemplated.
    """

    name: str
    address: str
    rank: int
    my_ip: str | None
    variables: Mapping[str, Any] = field(repr=False, compare=False)


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
        nodes: the master, then the workers in the inventory's order; the host in ``login`` if there are none.
        only_submits: there are no nodes, only the host in ``login`` that submits jobs to Slurm.
    """

    def __init__(
        self,
        inventory: Path,
        groups: Mapping[str, Sequence[str]],
        hostvars: Mapping[str, Mapping[str, Any]],
        extra_vars: Mapping[str, Any] | None = None,
        vault: str = "",
        become: str = "",
    ) -> None:
        """Make a cluster from an inventory that has been read; :meth:`load` reads one.

        Args:
            inventory: its path.
            groups: the hosts of each group, including those of its child groups.
            hostvars: each host's variables, untemplated.
            extra_vars: variables that win over all others.
            vault: file with the password of encrypted variables; empty for none.
            become: the sudo password on the nodes; empty for none.
        """
        self._vault, self._become = vault, become
        self._planned: Mapping[str, Any] | None = None
        self.inventory = inventory
        self.home = inventory if inventory.is_dir() else inventory.parent
        self.extra_vars = dict(extra_vars or {})
        self._groups = groups
        self._hostvars = {name: {**values, **self.extra_vars} for name, values in hostvars.items()}
        order = list(dict.fromkeys([*groups.get("master", ()), *groups.get("workers", ())]))
        self.only_submits = not order
        # Without nodes, Slurm chooses where each job runs.
        order = order or [*groups.get("login", ())][:1]
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
        self.name = str(first.get("rdm_cluster", CLUSTER))

    # --- reading ---------------------------------------------------------------------------------------

    @classmethod
    def load(
        cls,
        inventory: str | Path | None = None,
        *,
        extra_vars: Mapping[str, Any] | None = None,
        vault_password_file: str | Path = "",
        vault_password: str = "",
        become_password: str = "",
        planned: bool = False,
    ) -> Cluster:
        """Read an inventory. No node is touched.

        Args:
            inventory: path of an inventory folder or file; default: see :func:`find_inventory`.
            extra_vars: variables that win over the inventory's.
            vault_password_file: file with the password of encrypted variables, or a program that prints it.
            vault_password: the password itself.
            become_password: the sudo password on the nodes; empty if sudo needs none.
            planned: make the address plan as well, for the first :meth:`plan`, so that Ansible starts only
                once.

        Raises:
            InputError: no inventory was named and none was found, or there is no such password file.
            InventoryError: the inventory is missing or cannot be parsed, or has no nodes or an invalid port.

        >>> Cluster.load("inventory/lab").name  # doctest: +SKIP
        'rdm'
        """
        path = Path(inventory) if inventory is not None else find_inventory()
        if not path.exists():
            raise InventoryError(f"there is no inventory at {path}", hint=similar_inventories(path))
        require_one(path)
        vault = password_file(vault_password_file) if vault_password_file else ""
        if vault_password:
            vault = password_in_memory(vault_password)
        plan = None
        # Extra variables have types and templates, which only the file of a run can carry.
        if planned and not extra_vars:
            listing, plan = read_with_plan(path, vault)
        else:
            listing = read_inventory(path, vault)
        hostvars: dict[str, dict[str, Any]] = listing.pop("_meta", {}).get("hostvars", {})
        groups = {name: members_of(name, listing) for name in listing}
        for name in {host for hosts in groups.values() for host in hosts}:
            hostvars.setdefault(name, {})
        cluster = cls(path, groups, hostvars, extra_vars, vault, become_password)
        if not cluster.nodes:
            others = sorted(name for name in groups if groups[name] and name not in ("all", "ungrouped"))
            raise InventoryError(
                f"{path} has no host in the groups master and workers"
                + (f", only in {', '.join(others)}" if others else ""),
                hint="put one host into the group master and the others into workers, or into login the one "
                "that submits jobs to Slurm",
            )
        cluster._require_ports(path)
        cluster._planned = plan
        return cluster

    def _require_ports(self, path: Path) -> None:
        """Raise an InventoryError if the port of a node, or of a host of Slurm's, is invalid.

        On the master and on Slurm's hosts, no run could check it.
        """
        # A run evaluates templates.
        given = [
            name
            for name, variables in self._hostvars.items()
            if "{" not in str(variables.get("ansible_port", "{"))
        ]
        if not given:
            return
        from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.cluster_variables import (
            NODE_GROUPS,
            OTHER_GROUPS,
            Host,
            check_port,
        )

        ours = {host for group in (*NODE_GROUPS, *OTHER_GROUPS) for host in self._groups.get(group, ())}
        problems = [
            one for name in given if name in ours for one in check_port(Host(name, self._hostvars[name]))
        ]
        if problems:
            raise InventoryError(f"{path} has an invalid port", problems=problems)

    def _plan_file(self) -> AddressPlan | None:
        """Return the plan of the plan file; None if there is none, or it is broken, which a run refuses."""
        environment.make_importable()
        from ansible_collections.rdm.provision.plugins.plugin_utils.addresses import address_plan

        file = self.home / PLAN_FILE
        try:
            return address_plan.read_plan(str(file))
        except address_plan.PlanFileError:
            return None

    def node(self, name: str) -> Node:
        """Return a node by its name.

        Raises:
            InputError: there is no such node; the message names the closest.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        hint = nearest_node(name, [node.name for node in self.nodes], self._groups)
        raise InputError(f"there is no node {name!r} in {self.inventory}", hint=hint)

    def select(self, limit: str) -> tuple[str, ...]:
        """Return the names of the nodes that a pattern (Ansible's ``--limit``) selects, by rank.

        Every part of the pattern must match something: a typo is an error, not a warning.

        Raises:
            InputError: a part, or the whole, matches no node, or the pattern is not a string. An empty list
                would be all nodes.
        """
        if limit is not None and not isinstance(limit, str):
            hint = "write 'node2,node3', or leave it out for all nodes"
            raise InputError(f"limit {limit!r} is not a string, as Ansible's patterns are", hint=hint)
        return select(limit, [node.name for node in self.nodes], self._groups)

    @property
    def login(self) -> str:
        """The host that submits jobs to Slurm; empty if the inventory has none."""
        return next(iter(self._groups.get("login", ())), "")

    # --- the address plan ------------------------------------------------------------------------------

    def plan(self, *, save: bool = False, release: Iterable[str] = ()) -> PlanTable:
        """Return the address plan, without touching any node.

        Args:
            save: write it to the plan file.
            release: removed nodes whose reserved addresses become free; saves as well.

        Raises:
            InventoryError: the plan cannot be made, or a node in ``release`` has no reserved address.
                Nothing is written; ``problems`` has every reason.
            InputError: ``release`` is a string.
            ClusterBusyError: another run is changing this cluster.

        >>> table = Cluster.load("inventory/lab").plan()  # doctest: +SKIP
        >>> table.nodes[0].my_ip  # doctest: +SKIP
        '192.169.16.100'
        """
        release = words("release", release)
        save = save or bool(release)
        planned, self._planned = self._planned, None
        if planned and not save:
            return self._plan_table(planned, planned["warnings"])
        literal = {"plan_release": release} if release else {}
        run = self._run("plan", "plan", {}, exclusive=save, extra={"plan_write": save}, literal=literal)
        result = run.result()
        if result.refused:
            undone = ", so nothing was released" if release else ""
            raise InventoryError(
                f"the address plan cannot be made{undone}",
                problems=result.problems,
                warnings=result.warnings,
            )
        if result.plan is None:
            why = next((recap.why for recap in result.nodes.values() if recap.why), result.message)
            raise InventoryError(f"the address plan cannot be made: {why}")
        return self._plan_table(result.plan, result.warnings)

    def _plan_table(self, plan: Mapping[str, Any], warnings: Sequence[str]) -> PlanTable:
        return PlanTable(
            cluster=str(plan["cluster"]),
            subnet=str(plan["subnet"]),
            gateway=str(plan["gateway"]),
            file=self.home / PLAN_FILE,
            nodes=tuple(planned_nodes(plan)),
            saved=bool(plan["saved"]),
            warnings=tuple(warnings),
        )

    @property
    def is_lab(self) -> bool:
        """Whether this is a miniature cluster made by ``rdm-provision lab up``."""
        return (self.home / STATE_DIR / "lab").is_dir()

    @property
    def is_bare(self) -> bool:
        """Whether jobs run on the hosts themselves (``rdm_runtime: host``)."""
        return bool(self.nodes) and self.nodes[0].variables.get("rdm_runtime") == RUNTIME_HOST

    def _refuse_bare(self, verb: str, instead: str) -> None:
        """Refuse a verb for containers on bare hosts, and name what works there instead."""
        if self.is_bare:
            raise InputError(
                f"{verb} is for containers, and {self.inventory} has bare hosts (rdm_runtime: host)",
                hint=instead,
            )

    def _refuse_containers(self, verb: str, instead: str) -> None:
        """Refuse a verb for bare hosts on a cluster of containers. The plan refuses a misspelt runtime."""
        if self.only_submits:
            return  # for the want of nodes
        if self.nodes and self.nodes[0].variables.get("rdm_runtime", RUNTIME_CONTAINER) == RUNTIME_CONTAINER:
            raise InputError(
                f"{verb} is for bare hosts (rdm_runtime: host), and {self.inventory} has containers",
                hint=instead,
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names that ``limit`` accepts: nodes, then groups."""
        groups = [name for name in self._groups if name not in ("all", "ungrouped")]
        return (*(node.name for node in self.nodes), *groups)

    # --- runs ------------------------------------------------------------------------------------------

    def up(
        self,
        *,
        recheck: bool = False,
        tags: str | None = None,
        **run_options: Unpack[RunOptions],
    ) -> Run:
        """Bring the cluster up: images, network, MY_IP, containers, hostfile, and a check of the fabric.

        Refused if it would end a training job; so is :meth:`down`.

        Args:
            recheck: check everything again, even on nodes whose state file says that they have no work.
            tags: only the parts with one of these tags; None for all.
            run_options: see :class:`RunOptions`.

        Raises:
            InputError: the pattern matches no node, or a tag no part, or there is no tag in ``tags``.
            ClusterBusyError: (when started) another run is changing this cluster.

        >>> Cluster.load("inventory/lab").up().result().exit_code  # doctest: +SKIP
        0
        """
        keep = frozenset({CONTAINER_MODULE})
        extra = {"preflight_recheck": recheck or None}
        return self._run(
            "up", "site", run_options, tags=tags, exclusive=True, diff=True, keep=keep, extra=extra
        )

    def check(
        self,
        *,
        recheck: bool = False,
        tags: str | None = None,
        **run_options: Unpack[RunOptions],
    ) -> Run:
        """Find out what :meth:`up` would change on each node, down to the lines of files. Changes nothing.

        The result's ``changed`` names the nodes that drifted, and each node's ``changes`` say how.
        The errors are those of :meth:`up`.

        Args:
            recheck: check everything again, even on nodes whose state file says that they have no work.
            tags: only the parts with one of these tags; None for all.
            run_options: see :class:`RunOptions`.

        >>> Cluster.load("inventory/lab").check().result().changed  # doctest: +SKIP
        ()
        """
        extra = {"preflight_recheck": recheck or None}
        return self._run("check", "site", run_options, tags=tags, check=True, diff=True, extra=extra)

    def verify(
        self,
        *,
        all_pairs: bool = False,
        rdma: bool = False,
        collective: bool = False,
        max_size: str = "",
        **run_options: Unpack[RunOptions],
    ) -> Run:
        """Measure the fabric between the containers. The result's ``fabric`` is the table.

        Args:
            all_pairs: measure every pair, even in a cluster large enough for a sample.
            rdma: measure RDMA bandwidth and latency as well; in the result's ``rdma``.
            collective: time an all-reduce over all nodes as well; in the result's ``collective``. The image
                needs the trainer.
            max_size: the all-reduce's largest tensor, from ``1M`` up, such as ``256M``; default: ``1G``.
            run_options: see :class:`RunOptions`.

        Raises:
            InputError: RDMA or a collective needs more than one node, ``max_size`` is no size, or the nodes
                are bare hosts.

        >>> Cluster.load("inventory/lab").verify().result().fabric["verdicts"]  # doctest: +SKIP
        {'node1': {'ok': True, 'reason': ''}}
        """
        self._refuse_bare("verify", "rdm-provision train CONFIG.yaml --check inspects every node")
        nodes = self.select(run_options.get("limit", ""))
        if (rdma or collective) and len(nodes) < 2:
            what = "RDMA is measured between nodes" if rdma else "an all-reduce takes at least two nodes"
            raise InputError(f"{what}, and this run has only {nodes[0]}", hint="choose more with --limit")
        if max_size and not _SIZE.fullmatch(max_size):
            raise InputError(
                f"{max_size!r} is no size of a tensor", hint="give one from 1M up, such as 256M or 1G"
            )
        extra = {
            "verify_all_pairs": all_pairs or None,
            "verify_rdma": rdma or None,
            "verify_collective": collective or None,
            "verify_collective_max_size": max_size or None,
        }
        return self._run("verify", "verify", run_options, exclusive=rdma or collective, extra=extra)

    def down(
        self,
        *,
        images: bool = False,
        tags: str | None = None,
        **run_options: Unpack[RunOptions],
    ) -> Run:
        """Take away what :meth:`up` made, and only what carries our label.

        Args:
            images: remove the images as well.
            tags: only the parts with one of these tags; None for all.
            run_options: see :class:`RunOptions`.

        The errors are those of :meth:`up`.
        """
        self._refuse_bare("down", "rdm-provision env down takes away what up and env up have made there")
        extra = {"images_remove": images or None}
        keep = frozenset({FILES_MODULE})
        return self._run("down", "clean", run_options, tags=tags, exclusive=True, extra=extra, keep=keep)

    def env_up(self, *, tags: str | None = None, **run_options: Unpack[RunOptions]) -> Run:
        """Make bare hosts (``rdm_runtime: host``) ready to train: Python environment, MY_IP, hostfile, ssh.

        The errors are those of :meth:`up`.

        Args:
            tags: only the parts with one of these tags; None for all.
            run_options: see :class:`RunOptions`.
        """
        self._refuse_containers("env up", "rdm-provision up makes a cluster of them")
        return self._run("env up", "env_up", run_options, tags=tags, exclusive=True, diff=True)

    def env_down(self, *, tags: str | None = None, **run_options: Unpack[RunOptions]) -> Run:
        """Take away what :meth:`env_up` made, and nothing else.

        Refused while a job uses the environment, or if a node does not report whether one does.

        The errors are those of :meth:`up`.

        Args:
            tags: only the parts with one of these tags; None for all.
            run_options: see :class:`RunOptions`.
        """
        self._refuse_containers("env down", "rdm-provision down takes a cluster of them away")
        keep = frozenset({FILES_MODULE})
        return self._run("env down", "env_down", run_options, tags=tags, exclusive=True, keep=keep)

    def slurm_up(self, *, forks: int = 0, verbosity: int = 0) -> Run:
        """Make a Slurm cluster of the hosts, with accounting. A Slurm that is not ours is never touched.

        Args:
            forks: the number of hosts at a time.
            verbosity: ansible-playbook's number of ``-v``.
        """
        return self._slurm("slurm up", "slurm_up", forks, verbosity, exclusive=True, diff=True)

    def slurm_down(self, *, purge: bool = False, forks: int = 0, verbosity: int = 0) -> Run:
        """Take away what :meth:`slurm_up` made, and nothing else. Refused while jobs are in the queue.

        Args:
            purge: also remove the accounting database, with the records of past jobs.
            forks: how many hosts at a time.
            verbosity: ansible-playbook's number of ``-v``.
        """
        extra = {"slurm_purge": purge or None}
        return self._slurm("slurm down", "slurm_down", forks, verbosity, exclusive=True, extra=extra)

    def slurm_status(self, *, forks: int = 0, verbosity: int = 0) -> Run:
        """Query slurmctld's nodes and queue, read-only. :meth:`slurm_answer` returns them.

        Args:
            forks: how many hosts at a time.
            verbosity: ansible-playbook's number of ``-v``.
        """
        return self._slurm("slurm status", "slurm_status", forks, verbosity)

    def _slurm(self, verb: str, playbook: str, forks: int, verbosity: int, **more: Any) -> Run:
        keep = frozenset({SLURM_PLAN_MODULE, SLURM_NODES_MODULE})
        return self._run(verb, playbook, {"forks": forks, "verbosity": verbosity}, keep=keep, **more)

    def status(self, **run_options: Unpack[RunOptions]) -> Run:
        """Gather what runs where, read-only. :meth:`states` turns the result into one record per node.

        The errors are those of :meth:`up`.

        Args:
            run_options: see :class:`RunOptions`.

        >>> cluster = Cluster.load("inventory/lab")  # doctest: +SKIP
        >>> [(s.node, s.container) for s in cluster.states(cluster.status().result())]  # doctest: +SKIP
        [('node1', 'rdm (running)')]
        """
        self._refuse_bare("status", "rdm-provision jobs shows what runs there")
        return self._run("status", "status", run_options, keep=frozenset({FACTS_MODULE}))

    def exec(
        self,
        argv: Sequence[str],
        *,
        user: str = "",
        timeout: float = DEFAULT_TIMEOUT_S,
        stdin: bytes | None = None,
        **run_options: Unpack[RunOptions],
    ) -> Run:
        r"""Run a command in the training containers. :meth:`outputs` turns the result into one per node.

        Args:
            argv: the command and its arguments, a list; no shell interprets them.
            user: the user in the container; default: the container's own.
            timeout: seconds after which the wait ends and the node counts as failed.
            stdin: the command's standard input, the same on every node; None for none.
            run_options: see :class:`RunOptions`.

        The errors are those of :meth:`up`.

        >>> cluster = Cluster.load("inventory/lab")  # doctest: +SKIP
        >>> [o.stdout for o in cluster.outputs(cluster.exec(["hostname"]).result())]  # doctest: +SKIP
        ['node1\n']
        """
        self._refuse_bare("exec", f"ansible master:workers -i {self.inventory} -a 'COMMAND' runs one there")
        if isinstance(argv, str):
            hint = f"exec({argv.split()!r})"
            raise InputError(f"the command {argv!r} is a string, and exec takes a list of words", hint=hint)
        if not argv:
            raise InputError("there is no command to run", hint='exec(["hostname"])')
        if user and not _USER.fullmatch(user):
            raise InputError(f"{user!r} is not a user of a container", hint="give a name, or uid:gid")
        text = None if stdin is None else base64.b64encode(stdin).decode()
        extra = {"exec_timeout": timeout, "exec_user": user or None, "exec_stdin": text}
        return self._run(
            "exec",
            "exec",
            run_options,
            keep=frozenset({EXEC_MODULE}),
            extra=extra,
            literal={"exec_argv": list(argv)},
        )

    def _run(
        self,
        verb: str,
        playbook: str,
        options: RunOptions,
        *,
        tags: str | None = None,
        check: bool = False,
        diff: bool = False,
        exclusive: bool = False,
        observes_from: str = "",
        keep: frozenset[str] = frozenset(),
        extra: Mapping[str, Any] | None = None,
        literal: Mapping[str, list[str]] | None = None,
    ) -> Run:
        """Return a run; a variable of `extra` that is None keeps its default."""
        if self.only_submits and playbook not in _WITHOUT_NODES:
            raise InputError(
                f"{verb} needs nodes, and {self.inventory} has only {self.login}, which submits jobs to "
                "Slurm (group login)",
                hint="put the nodes into the groups master and workers",
            )
        if tags is not None:
            if not isinstance(tags, str):
                hint = "write 'network,container', or leave it out for all parts"
                raise InputError(f"tags {tags!r} is not a string", hint=hint)
            check_tags(playbook, tags)
        given = {name: value for name, value in (extra or {}).items() if value is not None}
        return Run(
            RunSpec(
                verb=verb,
                playbook=playbook,
                inventory=str(self.inventory),
                nodes=self.select(options.get("limit", "")),
                tags=tags or "",
                extra_vars={**self.extra_vars, **given},
                literal_vars=literal or {},
                check=check,
                diff=diff,
                home=self.home,
                exclusive=exclusive,
                observes_from=observes_from,
                keep=keep,
                vault=self._vault,
                become=self._become,
                **options,
            )
        )

    # --- what runs found -------------------------------------------------------------------------------

    def states(self, result: RunResult) -> tuple[NodeState, ...]:
        """Return the state of each node in a :meth:`status` run."""
        return outcomes.states(result, self.name)

    def containers(self, result: RunResult) -> tuple[tuple[str, str, str, str], ...]:
        """Return what an :meth:`up` run left running: node, container with its state, image, address."""
        return outcomes.containers(result, [node.name for node in self.nodes])

    def kept(self, result: RunResult) -> dict[str, tuple[str, ...]]:
        """Return the directories that a :meth:`down` run left, not being empty: directory → nodes."""
        return outcomes.kept(result)

    def slurm_answer(self, result: RunResult) -> SlurmAnswer:
        """Return what slurmctld reported in a :meth:`slurm_status` run, or at the end of :meth:`slurm_up`."""
        return outcomes.slurm_answer(result)

    def outputs(self, result: RunResult) -> tuple[CommandOutput, ...]:
        """Return what the command of an :meth:`exec` run wrote, by node."""
        return outcomes.outputs(result)
