# SPDX-License-Identifier: GPL-3.0-or-later
"""What must be true on a node before anything is changed there: engine, devices, space, names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network, ip_network
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.archive.images import room_to_load
from ansible_collections.rdm.provision.plugins.module_utils.constants import LABEL_CLUSTER
from ansible_collections.rdm.provision.plugins.module_utils.engine.container_spec import (
    memlock_shortage,
    nvidia_way,
    rdma_devices,
)
from ansible_collections.rdm.provision.plugins.module_utils.engine.ownership import NEXT, OLD, is_ours
from ansible_collections.rdm.provision.plugins.plugin_utils.collision import subnets_of
from ansible_collections.rdm.provision.plugins.plugin_utils.image_list import canonical
from ansible_collections.rdm.provision.plugins.plugin_utils.refusal import Problem, names

OLDEST_ENGINE = (20, 10)
OLDEST_API = (1, 41)
# The sriov plugin's own Docker client speaks this version of the API first.
SRIOV_PLUGIN_API = (1, 12)
# The network drivers whose network lies on an interface of the node.
DRIVERS_ON_A_PARENT = {"sriov", "macvlan", "ipvlan"}


class NodePlan(NamedTuple):
    """What the cluster wants of one node.

    Attributes:
        node: inventory name.
        cluster: the cluster's name.
        accelerator: `rocm`, `cuda` or `cpu`.
        my_ip: the node's address on the container network.
        subnet: that network's subnet.
        gateway: and its gateway.
        network_name: its name on the node.
        network_driver: its driver.
        network_parent: the node's interface below it, or empty.
        network_options: the driver's options.
        network_replace: whether the user agrees to make an existing network anew.
        container_name: the name of the training container.
        memlock_required: refuse when containers cannot lock all memory.
        engine_install: whether a missing engine is installed later in the run.
        min_free_bytes: space that images need, 0 for no check.
        image: what the training container runs; empty when that is not known.
        image_listed: whether images_list brings it; otherwise the node must have it.
        spare_jobs: refuse what would end a training job.
        own_devices: whether the user says which devices the container gets, and how.
        groups: the groups that the user gives the container, None for those of the node.
        userns_mode: `host` when the container is left out of the engine's user namespaces.
        unlabelled: mounts of the user that SELinux would have to allow.
        others: MY_IP -> node, of all nodes.
        rdma: whose RDMA devices the container gets: `interface`, `all`, or `auto`.
    """

    node: str
    cluster: str
    accelerator: str
    my_ip: str
    subnet: IPv4Network
    gateway: str
    network_name: str
    network_driver: str
    network_parent: str = ""
    network_options: Mapping[str, str] = {}
    network_replace: bool = False
    container_name: str = "rdm"
    memlock_required: bool = True
    engine_install: bool = False
    min_free_bytes: int = 0
    image: str = ""
    image_listed: bool = True
    spare_jobs: bool = True
    own_devices: bool = False
    groups: Sequence[str] | None = None
    userns_mode: str = ""
    unlabelled: Sequence[str] = ()
    others: Mapping[str, str] = {}
    rdma: str = "auto"


class Findings(NamedTuple):
    """What was found wrong: problems refuse the run, warnings do not."""

    problems: list[Problem]
    warnings: list[Problem]

    def warn(self, node: str, text: str) -> None:
        """Add a warning, a whole sentence."""
        self.warnings.append(Problem(node, "", text, ""))


def check_node(want: NodePlan, facts: Mapping[str, Any]) -> Findings:
    """Return everything that stands against the plan on one node."""
    findings = Findings([], [])
    for check in (
        _engine,
        _reported,
        _accelerator,
        _gpu_access,
        _user_namespaces,
        _selinux,
        _parent,
        _memlock,
        _image,
        _archives,
        _disk,
        _network,
        _parent_in_use,
        _container_name,
        _old_names,
        _address,
        _guests,
        _former_cluster,
        _rdma,
    ):
        check(want, facts, findings)
    return findings


def check_engine(want: NodePlan, facts: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with the engine and with the node itself, whatever is planned for it."""
    findings = Findings([], [])
    _engine(want, facts, findings)
    _reported(want, facts, findings)
    return findings.problems


def network_differences(want: NodePlan, facts: Mapping[str, Any]) -> list[str]:
    """Return how the existing network of our name differs from the plan; empty when it does not."""
    network = _existing(want, facts)
    if not network:
        return []
    options = network.get("options") or {}
    has = [("driver", network["driver"], want.network_driver)]
    has.append(("subnet", names(map(str, subnets_of(network))) or "none", str(want.subnet)))
    has.append(("gateway", names(map(_gateway, network.get("subnets") or [])) or "none", want.gateway))
    if network["driver"] == want.network_driver:
        has += [(name, options.get(name) or "none", value) for name, value in want.network_options.items()]
    differences = [f"{what} is {is_now}, not {wanted}" for what, is_now, wanted in has if is_now != wanted]
    if not is_ours(network.get("labels"), want.cluster):
        differences.append("it does not carry this cluster's label")
    return differences


def network_present(want: NodePlan, facts: Mapping[str, Any]) -> bool:
    """Return whether a network of the cluster's network name exists on the node."""
    return bool(_existing(want, facts))


def rdma_interface(want: NodePlan) -> str:
    """Return the interface whose RDMA devices the container gets; empty for all."""
    on_a_parent = want.network_driver in DRIVERS_ON_A_PARENT
    return want.network_parent if on_a_parent and want.rdma != "all" else ""


def container_seen(want: NodePlan, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return name, state and image of the cluster's container on the node; empty where there is none."""
    ours = [one for one in _containers(facts) if is_ours(one.get("labels"), want.cluster, "container")]
    # Beside it may be what a run that was killed has left.
    ours.sort(key=lambda one: one["name"] != want.container_name)
    return {key: str(ours[0][key]) for key in ("name", "state", "image")} if ours else {}


def ended_by_plan(want: NodePlan, facts: Mapping[str, Any]) -> list[str]:
    """Return the jobs that would end because their container gets a network made anew, or another address."""
    replaced = want.network_replace and bool(network_differences(want, facts))
    return sorted(
        job
        for container in _containers(facts)
        if want.spare_jobs and is_ours(container.get("labels"), want.cluster)
        if replaced or (container.get("networks") or {}).get(want.network_name, want.my_ip) != want.my_ip
        for job in container.get("jobs") or []
    )


def config_dir_problems(want: NodePlan, config_dir: str, facts: Mapping[str, Any]) -> list[Problem]:
    """Return a problem when another cluster keeps its files where this one's shall go."""
    owner = facts.get("config_owner") or want.cluster
    if owner == want.cluster:
        return []
    remedy = f"set rdm_config_dir to another directory, for example {config_dir}-{want.cluster}"
    return [Problem(want.node, config_dir, f"belongs to the cluster {owner}", remedy)]


# --- the checks --------------------------------------------------------------------------------------


def _engine(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    docker = facts.get("docker")
    others = facts.get("other_engines") or []
    if not docker:
        if want.engine_install and facts.get("docker_state") in ("absent", "stopped"):
            return
        remedies = {
            "absent": "install Docker Engine 20.10 or newer, or set docker_engine_install: true",
            "stopped": "start the Docker daemon, or set docker_engine_install: true",
            "forbidden": "add the user to group docker, or set rdm_become: true",
            "podman": (
                "install Docker Engine 20.10 or newer, and name its socket with rdm_docker_socket while "
                "Podman keeps this one"
            ),
        }
        reason = str(facts.get("docker_error") or "Docker cannot be used").rstrip(". ")
        remedy = remedies.get(str(facts.get("docker_state")), "make sure that the Docker daemon runs")
        for other in others:
            reason += f"; {_described(other)}"
            if other["address"].startswith("/") and _fits(want, other["kind"] == "rootless"):
                remedy = f"set rdm_docker_socket: {other['address']}, or {remedy}"
        findings.problems.append(Problem(want.node, "", reason, remedy))
        return
    for other in others:
        if other["kind"] == "context":
            findings.warn(
                want.node,
                f"{_described(other)}, and the cluster is on {docker['socket']} (rdm_docker_socket says "
                f"otherwise): `docker --context default` shows {other['user']} what runs there.",
            )
    if not _fits(want, "rootless" in (docker.get("security_options") or [])):
        findings.problems.append(
            Problem(
                want.node,
                f"the engine at {docker['socket']}",
                f"is rootless, and network_driver {want.network_driver} needs the node's own interfaces",
                "use an engine that root runs (rdm_docker_socket), or network_driver bridge on a single node",
            )
        )
    too_old = "install Docker Engine 20.10 or newer"
    if _version(docker.get("version")) < OLDEST_ENGINE:
        findings.problems.append(
            Problem(want.node, f"Docker Engine {docker['version']}", "is too old", too_old)
        )
    elif _version(docker.get("api_version")) < OLDEST_API:
        findings.problems.append(
            Problem(want.node, f"Docker API {docker['api_version']}", "is too old", too_old)
        )
    if want.network_driver == "sriov" and _version(docker.get("min_api_version")) > SRIOV_PLUGIN_API:
        findings.warn(
            want.node,
            f"Docker Engine {docker['version']} refuses API versions below "
            f"{docker['min_api_version']}, and rdma/sriov-plugin uses 1.12: a restarted plugin forgets its "
            "networks, so they are made anew then.",
        )
    if not facts.get("python_requests", True) and not want.engine_install:
        findings.problems.append(
            Problem(
                want.node,
                "the Python package requests",
                "is missing; the modules that talk to Docker need it",
                "install python3-requests",
            )
        )


def _reported(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    """Pass on what `node_facts` itself found wrong."""
    for finding in facts.get("findings") or []:
        text = str(finding["text"]).rstrip(". ")
        if finding.get("level") == "error":
            findings.problems.append(Problem(want.node, "", text, ""))
        else:
            findings.warn(want.node, f"{text}.")


def _accelerator(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    has = facts.get("accelerator", "cpu")
    count = len(facts.get("gpus") or [])
    if want.accelerator == has:
        return
    if want.accelerator == "cpu":
        findings.warn(want.node, f"rdm_accelerator is cpu, so its {count} GPUs ({has}) stay unused.")
        return
    found = f"{count} GPUs ({has})" if has != "cpu" else "no GPU that its driver serves"
    findings.problems.append(
        Problem(
            want.node,
            f"rdm_accelerator {want.accelerator}",
            f"does not fit the node, which has {found}",
            f"set rdm_accelerator: {has} for this node, or install the GPU driver",
        )
    )


def _gpu_access(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    """See that a container can get the GPUs, before the engine says no to it."""
    if want.accelerator != facts.get("accelerator") or want.own_devices:
        return
    devices = facts.get("devices") or {}
    value = f"rdm_accelerator {want.accelerator}"
    if want.accelerator == "cuda" and not nvidia_way(facts):
        reason = "needs NVIDIA's container toolkit, and neither it nor a CDI specification is on the node"
        remedy = (
            "install nvidia-container-toolkit, run nvidia-ctk runtime configure --runtime=docker, and "
            "restart Docker"
        )
        findings.problems.append(Problem(want.node, value, reason, remedy))
    elif want.accelerator == "cuda" and not devices.get("nvidia"):
        findings.warn(
            want.node,
            "the NVIDIA driver is loaded, and there is no /dev/nvidia0 yet: nvidia-smi or "
            "nvidia-persistenced makes it, and the toolkit tries to.",
        )
    elif want.accelerator == "rocm":
        missing = [
            path for path, there in (("/dev/kfd", "kfd"), ("/dev/dri", "dri")) if not devices.get(there)
        ]
        if missing:
            remedy = "load amdgpu with its compute part (modprobe amdgpu; dmesg says what it lacks)"
            findings.problems.append(
                Problem(want.node, value, f"needs {names(missing)}, missing here", remedy)
            )
        lacking = [str(gid) for gid in devices.get("groups") or [] if str(gid) not in (want.groups or [])]
        if lacking and want.groups is not None and all(group.isdigit() for group in want.groups):
            findings.warn(
                want.node,
                f"container_groups lacks {names(lacking)}, which owns the GPUs' devices: only root can use "
                "them in the container.",
            )


def _user_namespaces(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    """Refuse an engine that makes the container's root somebody else: the node's root owns what it reads."""
    if (
        "userns" not in ((facts.get("docker") or {}).get("security_options") or [])
        or want.userns_mode == "host"
    ):
        return
    reason = "hides the cluster's keys, job directories and devices from the containers' root"
    remedy = (
        "set container_userns_mode: host, which runs the cluster's containers without it, or take it out of "
        "the engine's daemon.json"
    )
    findings.problems.append(Problem(want.node, "userns-remap of the engine", reason, remedy))


def _selinux(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    """The cluster's own mounts are labelled; whether those of users may be is for them to say."""
    if want.unlabelled and "selinux" in ((facts.get("docker") or {}).get("security_options") or []):
        findings.warn(
            want.node,
            f"SELinux may keep the container from {names(want.unlabelled)} of container_volumes: give them "
            "the mode z (or Z for this container alone), or set container_security_opts: [label=disable].",
        )


def _parent(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    if not want.network_parent or want.network_driver not in DRIVERS_ON_A_PARENT:
        return
    existing = [one["name"] for one in facts.get("interfaces") or []]
    # Docker makes a VLAN interface of the parent itself: ib0.100 needs ib0 only.
    if want.network_parent in existing or want.network_parent.rpartition(".")[0] in existing:
        return
    findings.problems.append(
        Problem(
            want.node,
            f"network_parent {want.network_parent}",
            "is not an interface of the node",
            f"choose one of {names(name for name in existing if name != 'lo')}",
        )
    )


def _memlock(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    shortage = memlock_shortage(facts) if want.memlock_required else None
    if shortage is not None:
        remedy = (
            "set LimitMEMLOCK=infinity for the docker service, "
            "or go on with less with container_memlock_required: false"
        )
        findings.problems.append(Problem(want.node, "", shortage, remedy))


def _image(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    """Nobody brings an image that is not listed; of one that is named by a digest the node does not tell."""
    docker = facts.get("docker")
    if not docker or not want.image or want.image_listed or "@" in want.image:
        return
    found = docker.get("images") or []
    if canonical(want.image) not in {tag for one in found for tag in one.get("tags") or []}:
        findings.problems.append(
            Problem(
                want.node,
                f"container_image {want.image}",
                "is not on the node, and images_list is empty",
                "list it in images_list, or load it there",
            )
        )


def _archives(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    for archive in facts.get("archives") or []:
        path, problem = str(archive["path"]), str(archive["problem"])
        if problem:
            value = path if problem.startswith(f"{path} ") else ""
            reason = problem[len(value) :].lstrip()
            findings.problems.append(Problem(want.node, value, reason, str(archive["remedy"])))


def _disk(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    disk = facts.get("disk") or {}
    if not disk.get("total"):
        return
    classic = (facts.get("docker") or {}).get("image_store") == "classic"
    to_load = room_to_load(facts.get("archives") or [], classic)
    if int(disk["free"]) < to_load:
        what = f"has {_size(disk['free'])} free, and loading the image archives needs {_size(to_load)}"
        remedy = "free some space there (docker image prune)"
    elif int(disk["free"]) < want.min_free_bytes:
        what = f"has {_size(disk['free'])} free, and images need {_size(want.min_free_bytes)}"
        remedy = "free some space there (docker image prune), or lower images_min_free_bytes"
    else:
        return
    findings.problems.append(Problem(want.node, str(disk["path"]), what, remedy))


def _network(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    differences = network_differences(want, facts)
    if not differences:
        return
    network = _existing(want, facts)
    value = f"the Docker network {want.network_name}"
    foreign = _foreign_containers(want, facts, network)
    other = (network.get("labels") or {}).get(LABEL_CLUSTER)
    if other and other != want.cluster:
        reason, remedy = f"belongs to the cluster {other}", "choose another network_name"
    elif foreign:
        reason = f"has other settings ({'; '.join(differences)}) and carries containers that are not ours"
        remedy = f"remove {names(foreign)} from it, or choose another network_name"
    elif not want.network_replace:
        reason = f"has other settings: {'; '.join(differences)}"
        remedy = "set network_replace: true to have it made anew, or choose another network_name"
    else:
        return
    findings.problems.append(Problem(want.node, value, reason, remedy))


def _old_names(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    """Refuse names that differ from what this cluster has on the node: the old things would stay beside."""
    networks = (facts.get("docker") or {}).get("networks") or []
    named = (("container", want.container_name, _containers(facts)), ("network", want.network_name, networks))
    for kind, name, existing in named:
        for one in existing:
            left_behind = kind == "container" and one["name"] in (name + NEXT, name + OLD)
            if one["name"] != name and not left_behind and is_ours(one.get("labels"), want.cluster, kind):
                reason = f"is not what this cluster has on the node, a {kind} named {one['name']}"
                remedy = f"go back to {one['name']}, or take the cluster down first (rdm-provision down)"
                findings.problems.append(Problem(want.node, f"{kind}_name {name}", reason, remedy))


def _parent_in_use(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    """Refuse a second macvlan or ipvlan network on one interface, as the engine would later."""
    if want.network_driver not in ("macvlan", "ipvlan"):
        return
    for network in (facts.get("docker") or {}).get("networks") or []:
        same = (network.get("options") or {}).get("parent") == want.network_options.get("parent")
        if network["driver"] not in ("macvlan", "ipvlan") or not same:
            continue
        if network["name"] != want.network_name and not is_ours(network.get("labels"), want.cluster):
            findings.problems.append(
                Problem(
                    want.node,
                    f"network_parent {want.network_parent}",
                    f"carries the Docker network {network['name']} already, and the engine allows one",
                    "choose another interface (or a VLAN of it), or remove that network",
                )
            )


def _container_name(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    for container in _containers(facts):
        if container["name"] == want.container_name and not is_ours(container.get("labels"), want.cluster):
            findings.problems.append(
                Problem(
                    want.node,
                    f"a container named {want.container_name}",
                    "exists already and is not this cluster's",
                    "remove or rename it, or choose another container_name",
                )
            )


def _address(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    for container in _containers(facts):
        at = (container.get("networks") or {}).get(want.network_name)
        if at == want.my_ip and not is_ours(container.get("labels"), want.cluster):
            findings.problems.append(
                Problem(
                    want.node,
                    want.my_ip,
                    f"is used by the container {container['name']}, which is not this cluster's",
                    "remove that container from the network, or give the node another my_ip",
                )
            )


def _guests(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    """Name others on our network: the engine gives them addresses, and knows nothing of other nodes'.

    To keep the plan's addresses from them, the engine would have to be told all of them when the network is
    made, and each new node would mean making it anew everywhere.
    """
    network = _existing(want, facts)
    guests = _foreign_containers(want, facts, network) if network else []
    at = {one["name"]: (one.get("networks") or {}).get(want.network_name, "") for one in _containers(facts)}
    for guest in guests if is_ours(network.get("labels"), want.cluster) else []:
        address = at.get(guest, "")
        owner = want.others.get(address, "")
        if owner and address != want.my_ip:
            findings.warn(
                want.node,
                f"The container {guest}, which is not this cluster's, is on the network {want.network_name} "
                f"with the address {address} of {owner}: remove it from there.",
            )
        elif not owner:
            findings.warn(
                want.node,
                f"The container {guest}, which is not this cluster's, is on the network {want.network_name}"
                f"{f' at {address}' if address else ''}: the engine may give it the address of another node.",
            )


def _former_cluster(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    """Name jobs in a container of another cluster's name, be it a neighbour or this one's former name."""
    for one in _containers(facts):
        theirs = (one.get("labels") or {}).get(LABEL_CLUSTER, "")
        if theirs and theirs != want.cluster and one.get("jobs"):
            many = len(one["jobs"]) > 1
            jobs = f"jobs {names(one['jobs'])} run" if many else f"job {one['jobs'][0]} runs"
            findings.warn(
                want.node,
                f"The {jobs} in the container {one['name']} of the cluster {theirs}, beside which this "
                "cluster's is started: if that is the former name of this one, stop what runs there first.",
            )


def _rdma(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    """Say which RDMA devices the container does not get, unless the user has chosen."""
    interface = rdma_interface(want)
    left_out = rdma_devices(facts, interface).left_out
    if left_out and want.rdma == "auto":
        findings.warn(
            want.node,
            f"The container gets the RDMA devices of {interface}, and not {names(left_out)}: set "
            "container_rdma to all if it shall have every one, or to interface if this is right.",
        )


# --- helpers -----------------------------------------------------------------------------------------


def _described(other: Mapping[str, Any]) -> str:
    """Return in words which other engine of the node a user may mean."""
    if other["kind"] == "rootless":
        return f"user {other['user']} has a rootless one at {other['address']}"
    at = "is not on this node" if "://" in other["address"] else f"is at {other['address']}"
    return f"the engine of {other['user']}'s Docker context {other['name']} {at}"


def _fits(want: NodePlan, rootless: bool) -> bool:
    """Return whether such an engine can make the network: a rootless one has a network stack of its own."""
    return not rootless or want.network_driver not in DRIVERS_ON_A_PARENT


def _existing(want: NodePlan, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    networks: Iterable[Mapping[str, Any]] = (facts.get("docker") or {}).get("networks") or []
    return next((one for one in networks if one["name"] == want.network_name), {})


def _containers(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return (facts.get("docker") or {}).get("containers") or []


def _foreign_containers(want: NodePlan, facts: Mapping[str, Any], network: Mapping[str, Any]) -> list[str]:
    """Return the containers on the network, stopped ones included, that are not the cluster's."""
    labels = {one["name"]: one.get("labels") for one in _containers(facts)}
    attached = {one["name"] for one in _containers(facts) if network["name"] in (one.get("networks") or {})}
    attached.update(network.get("containers") or [])
    return sorted(name for name in attached if not is_ours(labels.get(name), want.cluster))


def _gateway(subnet: Mapping[str, Any]) -> str:
    """Return a subnet's gateway; the engine does not name it when it took the first usable address itself."""
    if subnet.get("gateway"):
        return str(subnet["gateway"]).partition("/")[0]
    return str(next(ip_network(subnet["subnet"]).hosts()))


def _version(text: Any) -> tuple[int, ...]:
    """Return `20.10.24+dfsg1` as (20, 10, 24); an unknown version counts as (0,)."""
    match = re.match(r"\d+(\.\d+)*", str(text or ""))
    return tuple(int(part) for part in match.group().split(".")) if match else (0,)


def _size(count: Any) -> str:
    mebibytes = int(count) / 2**20
    return f"{mebibytes / 2**10:.1f} GiB" if mebibytes >= 2**10 else f"{mebibytes:.1f} MiB"
