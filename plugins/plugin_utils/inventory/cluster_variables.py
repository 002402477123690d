# SPDX-License-Identifier: GPL-3.0-or-later
"""Validate the cluster's variables for all nodes at once.

The values come from the inventory, resolved by Ansible; nothing here queries a node.
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names
from ansible_collections.rdm.provision.plugins.module_utils.constants import (
    ACCELERATORS,
    RUNTIME_CONTAINER,
    RUNTIME_HOST,
    RUNTIMES,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory import role_specs
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.container_options import HOST_NAME
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.system_directories import (
    is_system_directory,
)

# Ansible's connection variables.
SSH_ARGUMENTS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
CONNECTION_VARIABLES = ("ansible_host", "ansible_port", "ansible_connection", *SSH_ARGUMENTS)
# Variables that must be the same on all nodes.
SHARED = ("rdm_cluster", "rdm_runtime", "rdm_subnet", "rdm_gateway")

NODE_GROUPS = ("master", "workers")
# Groups of other hosts: the one that submits jobs to Slurm, and Slurm's controller.
OTHER_GROUPS = ("login", "slurm_controller")

# The largest rdm_gpu_speed: 90 is a mistake for 0.9.
_FASTEST = 2.0
_CLUSTER = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_CONFIG_DIR = re.compile(r"/[^\0-\x1f:]*[^\0-\x1f:/]")
_SOCKET = re.compile(r"/[^\0-\x20:]*[^\0-\x20:/]")
_OVER_SSH = {"ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh"}


class Host(NamedTuple):
    """One host of the inventory.

    Attributes:
        name: its inventory name.
        variables: its cluster and connection variables that are set.
    """

    name: str
    variables: Mapping[str, Any]

    @property
    def address(self) -> str:
        """The address that ssh connects to."""
        return str(self.variables.get("ansible_host") or self.name)

    @property
    def over_ssh(self) -> bool:
        """Whether Ansible connects to the host by ssh."""
        return str(self.variables.get("ansible_connection") or "ssh") in _OVER_SSH


class Node(NamedTuple):
    """The cluster-wide variables of one node, checked."""

    accelerator: str
    slots: int
    become: bool
    config_dir: str


class Gpus(NamedTuple):
    """What the inventory says about the GPUs of one node, checked.

    Attributes:
        slots: `rdm_slots`: number of GPUs, or of processes on a node without GPUs.
        price: `rdm_gpu_price`: price per GPU hour, in any currency; 0 if unknown.
        speed: `rdm_gpu_speed`: the node's compute speed relative to other nodes with its GPU.
    """

    slots: int
    price: float
    speed: float


class Inventory(NamedTuple):
    """The cluster as the user described it.

    Attributes:
        cluster: its name.
        subnet: the user's subnet, or empty.
        gateway: the user's gateway, or empty.
        nodes: node name -> its variables, the master first.
        pins: node name -> `my_ip`.
        ssh_addresses: node name -> `ansible_host` (or its name) of the nodes reached by ssh.
        problems: what is wrong; invalid values are replaced by the defaults.
        runtime: what jobs run in on the nodes.
    """

    cluster: str
    subnet: str
    gateway: str
    nodes: dict[str, Node]
    pins: dict[str, str]
    ssh_addresses: dict[str, str]
    problems: list[Problem]
    runtime: str = RUNTIME_CONTAINER


def outside(groups: Mapping[str, Sequence[str]]) -> tuple[list[Problem], list[str]]:
    """Find the hosts that are no nodes, because they are neither in master nor in workers.

    Returns:
        A problem for each group whose name resembles one of the two, and for each of the cluster's hosts
        with the name of a group; and a warning of the other hosts. Hosts of Slurm's groups need not be nodes.
    """
    left = set(groups.get("all") or ())
    left -= {host for group in (*NODE_GROUPS, *OTHER_GROUPS) for host in groups.get(group) or ()}
    # A group of this host alone means the same.
    reason = "is also the name of a group, which Ansible takes in its place"
    problems = [
        Problem(host, "", reason, "rename the host or the group")
        for host in groups.get("all") or ()
        if host not in left and list(groups.get(host, [host])) != [host]
    ]
    for group, members in groups.items():
        near = difflib.get_close_matches(group.lower(), NODE_GROUPS, n=1, cutoff=0.8)
        lost = [host for host in members if host in left]
        if near and group not in NODE_GROUPS and lost:
            left -= set(lost)
            reason = f"in neither master nor workers (group: {group})"
            what = f"is {reason}" if len(lost) == 1 else f"are {reason}"
            problems.append(Problem(None, names(lost), what, f"did you mean {near[0]}?"))
    others = [host for host in groups.get("all") or () if host in left]
    if not others:
        return problems, []
    what = "is no node" if len(others) == 1 else "are no nodes"
    return problems, [f"{names(others)} {what} of this cluster: in neither master nor workers."]


def check_inventory(
    masters: Sequence[str], workers: Sequence[str], variables: Mapping[str, Mapping[str, Any]]
) -> Inventory:
    """Return the cluster and everything that is wrong with its inventory.

    Args:
        masters: the hosts of group `master`.
        workers: the hosts of group `workers`.
        variables: for each of these hosts its evaluated variables, those of the cluster and
            CONNECTION_VARIABLES.
    """
    hosts = {name: Host(name, variables[name]) for name in (*masters, *workers)}
    order = list(dict.fromkeys([*masters, *workers]))
    problems = _check_groups(masters, workers)
    problems += _check_names(order)
    problems += _check_duplicates([hosts[name] for name in order])
    shared = {option: _shared(option, [hosts[name] for name in order], problems) for option in SHARED}
    if not _CLUSTER.fullmatch(shared["rdm_cluster"]):
        hint = "use small letters, digits, '_', '.' and '-', beginning with a letter or digit"
        problems.append(
            Problem(None, f"rdm_cluster {shared['rdm_cluster']!r}", "is not a cluster name", hint)
        )
    nodes = {name: _check_node(hosts[name], problems) for name in order}
    runtime = _check_runtime(shared["rdm_runtime"], nodes, hosts, problems)
    return Inventory(
        cluster=shared["rdm_cluster"],
        subnet=shared["rdm_subnet"],
        gateway=shared["rdm_gateway"],
        nodes=nodes,
        pins={
            name: str(hosts[name].variables["my_ip"])
            for name in order
            if hosts[name].variables.get("my_ip") not in (None, "")
        },
        ssh_addresses={name: hosts[name].address for name in order if hosts[name].over_ssh},
        problems=problems,
        runtime=runtime,
    )


# --- checks ------------------------------------------------------------------------------------------


def _check_groups(masters: Sequence[str], workers: Sequence[str]) -> list[Problem]:
    both = [name for name in masters if name in set(workers)]
    problems = [
        Problem(name, "", "is in both groups, master and workers", "leave it in one of them") for name in both
    ]
    if not masters and not workers:
        what = "is empty: there is no host in the groups master and workers"
        problems.append(
            Problem(None, "the cluster", what, "put one host into master and the others into workers")
        )
    elif not masters:
        hint = f"move one host there from workers, for example {workers[0]}"
        problems.append(Problem(None, "the group master", "has no host", hint))
    elif len(masters) > 1:
        what = f"has {len(masters)} hosts ({names(masters)})"
        problems.append(
            Problem(None, "the group master", what, "leave one there and move the others to workers")
        )
    return problems


def _check_names(order: Sequence[str]) -> list[Problem]:
    hint = "use letters, digits, '.', '_' and '-', beginning with a letter or digit, and set ansible_host"
    return [
        Problem(
            None, f"the host name {name!r}", "has characters that are not safe in files and commands", hint
        )
        for name in order
        if not HOST_NAME.fullmatch(name)
    ] + [
        Problem(
            None,
            f"the host name {name!r}",
            "refers to whichever host or container uses it",
            "give the host another name, and set ansible_host",
        )
        for name in order
        if len(order) > 1 and name.lower() == "localhost"
    ]


def _check_duplicates(hosts: Sequence[Host]) -> list[Problem]:
    """Report each host with the connection of another; one address behind two jump hosts is two hosts."""
    users: dict[tuple[str, ...], str] = {}
    problems = []
    for host in hosts:
        if not host.over_ssh:
            continue
        address = f"[{host.address}]" if ":" in host.address else host.address
        where = f"{address.lower()}:{host.variables.get('ansible_port') or 22}"
        given = (str(host.variables.get(name) or "") for name in SSH_ARGUMENTS)
        reached = (where, *(way for text in given for way in _ways(text)))
        if reached in users:
            hint = "list each node once"
            problems.append(Problem(host.name, where, f"is the same host as {users[reached]}", hint))
        users.setdefault(reached, host.name)
    return problems


def _ways(arguments: str) -> Iterator[str]:
    """Yield what ssh's arguments set of the route to a host: jump host, proxy command, configuration file."""
    try:
        words = iter(shlex.split(arguments))
    except ValueError:  # ssh reports it
        return
    for word in words:
        option, value = word[:2], word[2:]
        if option in ("-J", "-F", "-o"):
            value = value or next(words, "")
            name, _, target = value.replace("=", " ", 1).partition(" ")
            if option != "-o":
                yield value
            elif name.lower() in ("proxyjump", "proxycommand"):
                yield target.strip()


def _shared(option: str, hosts: Sequence[Host], problems: list[Problem]) -> str:
    """Return the value that all hosts agree on, or the most frequent one and a problem."""
    default = role_specs.cluster_options()[option]["default"]
    values: dict[str, list[str]] = {}
    for host in hosts:
        value = host.variables.get(option)
        values.setdefault(str(default if value is None else value), []).append(host.name)
    if len(values) > 1:
        output = "; ".join(f"{value!r} on {names(who, 3)}" for value, who in values.items())
        hint = "set it once, under all: vars:"
        problems.append(Problem(None, option, f"differs between nodes: {output}", hint))
    return max(values, key=lambda value: len(values[value])) if values else str(default)


def _check_runtime(
    runtime: str, nodes: Mapping[str, Node], hosts: Mapping[str, Host], problems: list[Problem]
) -> str:
    """Return the runtime, and add what bare hosts lack to `problems`."""
    if runtime not in RUNTIMES:
        hint = "choose container or host"
        problems.append(Problem(None, f"rdm_runtime {runtime!r}", "is nothing that jobs run in", hint))
        return RUNTIME_CONTAINER
    if runtime == RUNTIME_HOST:
        for name, node in nodes.items():
            if node.become:
                reason = (
                    "is for containers: on bare hosts jobs run as the user that ssh logs in as, not as root"
                )
                problems.append(Problem(name, "rdm_become true", reason, "set rdm_become: false"))
            if hosts[name].variables.get("my_ip") in (None, ""):
                hint = "set it to the address that the host has on the fabric"
                problems.append(Problem(name, "my_ip", "is not set, and a bare host is given none", hint))
    return runtime


def check_gpus(host: Host) -> tuple[Gpus, list[Problem]]:
    """Return what the inventory says about a node's GPUs, and what is wrong with it.

    Returns:
        The values, with 1 or the default for an invalid one, and a problem for each invalid value.
    """
    problems = []

    def value(option: str, fits: Callable[[float], bool], reason: str, hint: str) -> float | None:
        written = host.variables.get(option, role_specs.cluster_options()[option]["default"])
        number = _number(written)
        if number is not None and fits(number):
            return number
        problems.append(Problem(host.name, f"{option} {written!r}", reason, hint))
        return None

    slots = value(
        "rdm_slots",
        lambda number: number >= 1 and number.is_integer(),
        "is not a number of processes",
        "set the number of processes (GPUs) per node, 1 or more",
    )
    price = value(
        "rdm_gpu_price",
        lambda number: number >= 0,
        "is no price",
        "set what a GPU costs for an hour, as 2.5",
    )
    speed = value(
        "rdm_gpu_speed",
        lambda number: 0 < number <= _FASTEST,
        "is no share of a speed",
        "set what part of it the node reaches, as 0.9",
    )
    return Gpus(int(slots or 1), price or 0.0, speed or 1.0), problems


def check_port(host: Host) -> list[Problem]:
    """Return a problem if a host's `ansible_port` is no port: Ansible reports it as a failure of the host."""
    port = host.variables.get("ansible_port")
    if not host.over_ssh or port is None or _integer(port) in range(1, 65536):
        return []
    hint = "choose one from 1 to 65535, or leave it out for 22"
    return [Problem(host.name, f"ansible_port {port!r}", "is not a port", hint)]


def _check_node(host: Host, problems: list[Problem]) -> Node:
    """Return the node's variables, and add what is wrong with them to `problems`."""

    def reject(option: str, value: Any, reason: str, hint: str) -> None:
        problems.append(Problem(host.name, f"{option} {value!r}", reason, hint))

    accelerator = host.variables.get("rdm_accelerator")
    if accelerator is None:
        problems.append(Problem(host.name, "rdm_accelerator", "is not set", "set it to rocm, cuda or cpu"))
    elif accelerator not in ACCELERATORS:
        reject("rdm_accelerator", accelerator, "is not an accelerator", "choose rocm, cuda or cpu")

    gpus, found = check_gpus(host)
    problems += found
    problems += check_port(host)

    become = host.variables.get("rdm_become", True)
    try:
        become = boolean(become)
    except TypeError:
        reject("rdm_become", become, "is neither true nor false", "set it to true or false")

    config_dir = str(host.variables.get("rdm_config_dir") or "")
    if config_dir and not _CONFIG_DIR.fullmatch(config_dir):
        hint = "give an absolute path such as /etc/rdm, without ':' and line breaks"
        reject("rdm_config_dir", config_dir, "is not a usable directory", hint)
    elif config_dir and is_system_directory(config_dir):
        hint = "give the cluster a directory of its own, such as /etc/rdm"
        reject("rdm_config_dir", config_dir, "is a directory of the operating system", hint)

    docker_socket = str(host.variables.get("rdm_docker_socket") or "")
    if docker_socket and not _SOCKET.fullmatch(docker_socket):
        hint = "give the path of a unix socket on the node, such as /run/docker.sock, without unix://"
        reject("rdm_docker_socket", docker_socket, "is not the path of an engine's socket", hint)

    return Node(
        accelerator=str(accelerator) if accelerator in ACCELERATORS else "cpu",
        slots=gpus.slots,
        become=bool(become),
        config_dir=config_dir,
    )


def _integer(value: Any) -> int | None:
    """Return a value as an integer; text is parsed; None if it is not one, such as 22.0."""
    try:
        return int(str(value))
    except ValueError:
        return None


def _number(value: Any) -> float | None:
    """Return a value as a finite number; text is parsed; None if it is not one."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
