# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired training container of a node, and the files that it reads."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable
from ipaddress import IPv4Network
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.network.rails import in_subnet
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.rails import network_of
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.hostfile import desired_hostfile
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.my_ip import desired_my_ip
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import Observed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.owned_files import (
    OwnedFiles,
    absent,
    cluster_directory,
    owner_marker,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry, needed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.vfs import reserves_vf
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.container_options import (
    MOUNT_OPTIONS,
    OUR_MOUNTS,
    own_memory,
    unlabelled_volumes,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.role_specs import ROLES

JOBS = "/var/lib/rdm"
"""Directory of the jobs of all clusters of a node; each cluster has a subdirectory."""

_START = ["/bin/sh", "/etc/rdm/ssh/start"]
_CERTIFICATE = "ssh_host_ed25519_key-cert.pub"
_SSHD = """\
# Written by rdm-provision.
Port {port}
ListenAddress {my_ip}
HostKey /etc/rdm/ssh/ssh_host_ed25519_key
HostCertificate /etc/rdm/ssh/ssh_host_ed25519_key-cert.pub
AuthorizedKeysFile /etc/rdm/ssh/authorized_keys
# The keys are mounted read-only. They belong to whoever manages the node: root, or a user without root, whom
# sshd would not take for trustworthy.
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
# Many nodes may start processes here at the same moment.
MaxStartups 1000
MaxSessions 1000
PidFile none
PrintMotd no
X11Forwarding no
Subsystem sftp internal-sftp
"""


class DesiredContainer(NamedTuple):
    """Desired state of the role container: options of the module `rdm.provision.container`, and files.

    Attributes:
        name: of the container.
        cluster: the cluster that owns it.
        accelerator: the node's accelerator, by which the checks choose devices.
        devices_of: which RDMA devices it gets if the user lists no devices, as `container_rdma`.
        image: its image; empty if only a plan decides it.
        command: its command.
        hostname: its host name.
        network: the Docker network with MY_IP.
        my_ip: its address there.
        rails: the networks of further rails, and its address on each.
        plugin_socket: socket of the network plugin that assigns its VF; empty for none.
        rdma: whether it gets the RDMA devices of that VF.
        env: its environment.
        volumes: its mounts.
        devices: its devices.
        device_requests: its requests to device drivers.
        groups: supplementary groups of its processes.
        ulimits: its limits.
        capabilities: capabilities in addition to the engine's default.
        security_opts: its security options.
        ipc_mode: its IPC mode, which decides whose shared memory it uses.
        userns_mode: its user namespace mode.
        shm_size: size of its own shared memory; empty for the engine's default.
        restart_policy: when the engine restarts it.
        stop_timeout: seconds between its stop signal and SIGKILL.
        reads: digest of the files that it reads only at start.
        ready_line: the line in its log that says that it is ready; empty for none.
        files: the files that it reads.
    """

    name: str
    cluster: str
    accelerator: str
    devices_of: str
    image: str
    command: list[str]
    hostname: str
    network: str
    my_ip: str
    rails: dict[str, str]
    plugin_socket: str
    rdma: bool
    env: dict[str, str]
    volumes: list[str]
    devices: list[str]
    device_requests: list[dict[str, Any]]
    groups: list[str]
    ulimits: list[str]
    capabilities: list[str]
    security_opts: list[str]
    ipc_mode: str
    userns_mode: str
    shm_size: str
    restart_policy: str
    stop_timeout: int
    reads: str
    ready_line: str
    files: OwnedFiles

    @property
    def own_memory(self) -> int | None:
        """Bytes of the container's own shared memory; None if it uses the node's."""
        return own_memory(self.shm_size, self.ipc_mode)

    @property
    def unlabelled(self) -> list[str]:
        """The user's mounts that SELinux, if it is enabled, may deny to the container."""
        theirs = [one for one in self.volumes if one.split(":")[1] not in OUR_MOUNTS]
        options = (theirs, self.ipc_mode, self.shm_size, self.security_opts)
        return unlabelled_volumes(dict(zip(MOUNT_OPTIONS, options, strict=True)))


def desired_container(variables: NodeVariables, entry: PlanEntry) -> DesiredContainer:
    """Return the desired container of a node.

    Args:
        variables: the node's variables.
        entry: its part of the plan. The container's devices and limits are in it only after the node was
            queried.

    Raises:
        ValueError: a value of the plan is missing, or the variables contradict each other.
    """
    my_ip = needed("container_my_ip", variables, entry.my_ip)
    sshd = variables.true("container_sshd", otherwise=True)
    shm_size = variables.text("container_shm_size")
    ipc_mode = variables.text("container_ipc_mode") or ("private" if shm_size else "host")
    if shm_size and ipc_mode == "host":
        raise ValueError(
            f"container_shm_size {shm_size} has no effect with container_ipc_mode host; set only one of them"
        )
    rails = _rails(variables, entry, my_ip)
    debug = variables.true("container_debug")
    security_opts = _security_opts(variables, debug)
    confined = ipc_mode != "host" and not _has(security_opts, "label[=:]disable")
    certificate = entry.keys.get(_CERTIFICATE, "")
    capabilities = [str(one) for one in _of_node("container_capabilities", variables, entry, [])]
    files = _files(variables, entry, my_ip)
    devices_of = variables.text("container_rdma")
    # Without a plan, the variables of other roles may be unknown here.
    reserved = bool(entry.my_ip) and reserves_vf(variables)
    return DesiredContainer(
        name=variables.text("container_name"),
        cluster=variables.text("rdm_cluster"),
        accelerator=variables.text("rdm_accelerator"),
        devices_of=devices_of,
        image=variables.text("container_image") or entry.image,
        command=variables.texts("container_command") or [*_START, *([] if sshd else ["sleep", "infinity"])],
        hostname=variables.text("container_hostname") or entry.node,
        network=variables.text("container_network") or variables.text("network_name"),
        my_ip=my_ip,
        rails=rails,
        plugin_socket=variables.text("container_plugin_socket")
        or (variables.text("sriov_socket") if reserved else ""),
        rdma=not (reserved and (devices_of == "all" or variables.value("container_devices") is not None)),
        env={
            "MY_IP": my_ip,
            "MASTER_ADDR": needed("container_master_addr", variables, entry.master_addr),
            **{f"MY_IP_{number}": at for number, at in enumerate(rails.values(), start=1)},
            **{name: str(value) for name, value in (variables.value("container_env") or {}).items()},
        },
        volumes=[
            *_volumes(variables, entry, confined),
            *variables.texts("container_volumes"),
        ],
        devices=_of_node("container_devices", variables, entry, []),
        device_requests=_of_node("container_device_requests", variables, entry, []),
        groups=_of_node("container_groups", variables, entry, []),
        ulimits=_of_node("container_ulimits", variables, entry, ["memlock:-1:-1"]),
        capabilities=list(dict.fromkeys([*capabilities, *(["SYS_PTRACE"] if debug else [])])),
        security_opts=security_opts,
        ipc_mode=ipc_mode,
        userns_mode=variables.text("container_userns_mode"),
        # Docker's default of 64 MB is too small for collectives within the node.
        shm_size=shm_size or ("" if ipc_mode == "host" else _spec(entry).get("shm_size", "")),
        restart_policy=variables.text("container_restart_policy"),
        stop_timeout=variables.number("container_stop_timeout"),
        # sshd reads its configuration only at start, so a changed one means a new container.
        reads=_digest(_sshd(variables, my_ip), _file("start.sh"), certificate) if sshd else "",
        ready_line=f"Server listening on {my_ip}" if sshd else "",
        files=files,
    )


def absent_container(variables: NodeVariables, entry: PlanEntry) -> OwnedFiles:
    """Return the files to remove with the container; job directories stay."""
    files = _files(variables, entry, "")
    return OwnedFiles(
        owner_marker=files.owner_marker,
        directories=absent(*(one["path"] for one in files.directories)),
        files=absent(*(one["path"] for one in files.files)),
    )


def container_steps(
    part: DesiredContainer, variables: NodeVariables, entry: PlanEntry, observed: Observed
) -> dict[str, Any]:
    """Return what the role's tasks read in addition to the part.

    `settings` is the part without its files, some of which are secret. `written` are all files that the call
    writes, with those of the roles in `__container_in_same_call`. `has_jobs` is whether jobs may run in the
    container, which is unknown without preflight. `image_comes` is the image's ID in check mode, if the role
    images would provide it: the classic image store uses this digest as its ID.
    """
    same_call = variables.texts("__container_in_same_call")
    others = {"my_ip": desired_my_ip, "hostfile": desired_hostfile}
    written = [part.files, *(make(variables, entry) for role, make in others.items() if role in same_call)]
    jobs = "docker" not in observed.preflight or observed.container(part.name).get("jobs")
    classic = (observed.preflight.get("docker") or {}).get("image_store") == "classic"
    provided = (
        image["digest"]
        for one in observed.result("images_inspection").get("results") or ()
        if "problem" not in one
        for image in one.get("images") or ()
        if part.image in image["tags"]
    )
    return {
        "settings": {name: value for name, value in part._asdict().items() if name != "files"},
        "written": {
            "owner_markers": [one.owner_marker for one in written],
            **{
                name: [item for one in written for item in getattr(one, name)]
                for name in ("directories", "files", "blocks", "repairs")
            },
        },
        "has_jobs": bool(jobs) and variables.true("container_protect_jobs", otherwise=True),
        "image_comes": next(provided, "") if observed.check_mode and classic else "",
    }


def _files(variables: NodeVariables, entry: PlanEntry, my_ip: str) -> OwnedFiles:
    """Return the files that the container reads."""
    directory, jobs = _directory(variables, entry), job_directory(variables, entry)
    # By default, the node's clusters share the parent directory, and the last one removes it. Only root may
    # enter it, so that no other user runs what a container's root leaves there, such as a setuid program.
    shared = re.fullmatch(rf"{JOBS}/[^/]+", jobs)
    ssh, keys = f"{directory}/ssh", entry.keys
    address_map = needed("container_address_map", variables, entry.address_map) if my_ip else ""
    return OwnedFiles(
        owner_marker=owner_marker(directory, variables),
        directories=[
            {"path": directory},
            {"path": ssh},
            {"path": f"{directory}/job"},
            *([{"path": JOBS, "mode": "0700"}] if shared else []),
            {"path": jobs},
        ],
        files=[
            *(
                {"path": f"{ssh}/{name}", "secret_content": keys.get(name, ""), "mode": "0600"}
                for name in ("id_ed25519", "ssh_host_ed25519_key")
            ),
            *(
                {"path": f"{ssh}/{name}", "content": keys.get(name, "")}
                for name in ("authorized_keys", _CERTIFICATE, "known_hosts")
            ),
            {
                "path": f"{ssh}/config",
                "ssh_client_config": {
                    "address_map": address_map,
                    "port": variables.number("container_ssh_port"),
                },
            },
            {"path": f"{ssh}/sshd_config", "content": _sshd(variables, my_ip)},
            {"path": f"{ssh}/start", "content": _file("start.sh"), "mode": "0755"},
            {"path": f"{ssh}/hosts", "content": _file("hosts.sh")},
        ],
    )


def _directory(variables: NodeVariables, entry: PlanEntry) -> str:
    return variables.text("container_config_dir") or cluster_directory(variables, entry)


def job_directory(variables: NodeVariables, entry: PlanEntry) -> str:
    """Return the directory of jobs on a node; not expanded without facts."""
    given = variables.text("container_job_directory") or variables.text("job_directory")
    if given:
        return given
    if variables.true("rdm_become", otherwise=True):
        return f"{JOBS}/{variables.text('rdm_cluster')}"
    return f"{_directory(variables, entry)}/jobs"


def _rails(variables: NodeVariables, entry: PlanEntry, my_ip: str) -> dict[str, str]:
    """Return the networks of the further rails in the plan, and the node's address on each."""
    first = variables.text("network_name")
    return {
        network_of(first, index): in_subnet(my_ip, IPv4Network(entry.subnet), IPv4Network(subnet))
        for index, subnet in enumerate(entry.rails, start=1)
    }


def _volumes(variables: NodeVariables, entry: PlanEntry, confined: bool) -> list[str]:
    """Return the cluster's own mounts.

    They are directories, since a mounted file would not follow an atomic replacement. If SELinux confines the
    container, it can read only what has the containers' label; an engine does not confine a container that
    shares the node's memory.
    """
    labels = confined and "selinux" in (entry.engine.get("security_options") or ())
    directory = _directory(variables, entry)
    return [
        f"{directory}:/etc/rdm:ro{',z' if labels else ''}",
        f"{directory}/job:/job:ro{',z' if labels else ''}",
        f"{job_directory(variables, entry)}:/jobs{':z' if labels else ''}",
    ]


def _security_opts(variables: NodeVariables, debug: bool) -> list[str]:
    given = variables.texts("container_security_opts")
    if variables.true("container_no_new_privileges") and not _has(given, "no-new-privileges"):
        given = [*given, "no-new-privileges"]
    return [*given, "seccomp=unconfined"] if debug and not _has(given, "seccomp=") else given


def _has(security_opts: Iterable[str], start: str) -> bool:
    return any(re.match(start, one) for one in security_opts)


def _of_node(variable: str, variables: NodeVariables, entry: PlanEntry, otherwise: list[str]) -> list[Any]:
    """Return the user's value, else the plan's choice from the node's facts, else the default."""
    given = variables.value(variable)
    planned = _spec(entry).get(variable.removeprefix("container_"), otherwise)
    return list(planned if given is None else given)


def _spec(entry: PlanEntry) -> dict[str, Any]:
    return dict(entry.observed.get("container") or {})


def _sshd(variables: NodeVariables, my_ip: str) -> str:
    return _SSHD.format(port=variables.text("container_ssh_port"), my_ip=my_ip)


@functools.cache
def _file(name: str) -> str:
    """Return the text of a script that the container runs."""
    return (ROLES / "container/files" / name).read_text(encoding="utf-8")


def _digest(*texts: str) -> str:
    return hashlib.sha256("".join(texts).encode()).hexdigest()
