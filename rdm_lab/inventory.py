# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory of a lab, and ssh's files for its nodes. Pure decisions."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.ssh_config import known_only_from, section
from ansible_collections.rdm.provision.plugins.module_utils.docker.podman import SOCKET as PODMAN_SOCKET
from ansible_collections.rdm.provision.rdm_lab.recipe import (
    CPU_ARCHIVE,
    CPU_IMAGE,
    SRIOV_ARCHIVE,
    SRIOV_IMAGE,
)
from ansible_collections.rdm.provision.rdm_lab.spec import (
    FILES_AT,
    IMAGES_AT,
    SHARED_AT,
    SLURM_GPUS,
    SUBNET_PREFIX,
)
from ansible_collections.rdm.provision.rdm_lab.trainer import TRAIN_IMAGE

VIRTUAL_FUNCTIONS = 7  # as many as the card of a virtual machine has
USER = "rdm"
SSH_ARGS = "-o ControlMaster=auto -o ControlPersist=5m -o ServerAliveInterval=10 -o ServerAliveCountMax=12"
"""As elsewhere, except for ServerAliveCountMax: nodes of a busy machine may be silent for more than half a
minute. When ssh gives a shared connection up, its users end with 255 and no message."""
SLURM_TYPES = {"hgx": "hgx", "gpu2": "a10"}
"""Partition -> type of its GPUs. The first node is in the first partition, all others in the second."""


def cluster_inventory(
    lab: str,
    addresses: Mapping[str, str],
    driver: str,
    control_path: str,
    train_archive: str = "",
    *,
    machines: bool = False,
    rails: int = 1,
    podman: bool = False,
) -> dict[str, Any]:
    """Return the inventory of a lab.

    Args:
        lab: its name.
        addresses: node -> management address; the first node is the master.
        driver: of the container network.
        control_path: the directory of ssh's shared connections.
        train_archive: the archive of the training image for the containers; empty for the CPU image.
        machines: the nodes are virtual machines, with virtual functions and all rights of a host.
        rails: how many fabric interfaces a node has: ib0, ib1 and so on.
        podman: the nodes' engine is Podman.
    """
    image, archive = (TRAIN_IMAGE, train_archive) if train_archive else (CPU_IMAGE, CPU_ARCHIVE)
    master, *workers = addresses
    hosts = {node: {"ansible_host": address} for node, address in addresses.items()}
    images: list[dict[str, Any]] = [_archive(image, archive)]
    variables: dict[str, Any] = {
        "ansible_user": USER,
        "ansible_ssh_private_key_file": "{{ inventory_dir }}/" + f"{FILES_AT}/id_ed25519",
        "ansible_ssh_common_args": (
            "-o 'UserKnownHostsFile=\"{{ inventory_dir }}/" + FILES_AT + "/known_hosts\"' "
            "-o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes"
        ),
        "ansible_ssh_args": SSH_ARGS,
        "ansible_control_path_dir": control_path,
        "ansible_python_interpreter": "/usr/bin/python3",
        "rdm_cluster": lab,
        "rdm_accelerator": "cpu",
        "rdm_slots": 2,
        "network_driver": driver,
        "network_parent": "ib0",
        "container_image": image,
    }
    if podman:
        variables["rdm_docker_socket"] = PODMAN_SOCKET
    if rails > 1:
        variables["container_rails"] = [f"ib{rail}" for rail in range(rails)]
    if machines:
        variables["sriov_vfs"] = VIRTUAL_FUNCTIONS
        # Without KVM, sudo and Python alone take seconds to start.
        variables.update(
            {
                "ansible_timeout": 120,
                "sriov_ready_timeout": 120,
                "verify_deadline": 180.0,
                "verify_timeout": 45.0,
            }
        )
    else:
        variables["container_memlock_required"] = False
        # All nodes share this machine, which may be busy: a slow login is not a fault.
        variables.update({"ansible_timeout": 60, "verify_deadline": 90.0})
    if driver == "sriov" and not machines:
        images.append(_archive(SRIOV_IMAGE, SRIOV_ARCHIVE))
        variables.update(
            {
                "sriov_image": SRIOV_IMAGE,
                # The stand-ins for virtual functions.
                "sriov_command": ["/usr/local/bin/sriov-plugin"],
            }
        )
    variables["images_list"] = images
    # Not under `all`, which would give the nodes' user and key to the control machine, too.
    return {
        "cluster": {
            "children": {
                "master": {"hosts": {master: hosts[master]}},
                "workers": {"hosts": {node: hosts[node] for node in workers}},
            },
            "vars": variables,
        }
    }


class NodePackages(NamedTuple):
    """The packages for the nodes' Python environment.

    Attributes:
        name: of their directory.
        archives: its parent on this machine.
        torch: the requirement of their torch.
        extras: what they support besides training.
    """

    name: str
    archives: str
    torch: str
    extras: Sequence[str] = ()

    def variables(self) -> dict[str, Any]:
        """Return the variables that make nodes install them without an index."""
        return {
            "python_env_torch": self.torch,
            "python_env_torch_backend": "",
            "python_env_no_index": True,
            "python_env_find_links": [f"{IMAGES_AT}/{self.name}"],
            "python_env_controller_find_links": [f"{self.archives}/{self.name}"],
            **({"python_env_extras": [*self.extras]} if self.extras else {}),
        }


def slurm_inventory(made: dict[str, Any], packages: NodePackages | None = None) -> dict[str, Any]:
    """Return the inventory of a lab whose nodes are a Slurm cluster of two partitions.

    Jobs run on the nodes themselves, in an environment that `env up` makes in the shared directory.

    The hardware is a stand-in: device files without GPUs, and more cores and memory than there are, so that
    Slurm accepts jobs of the usual size.

    Args:
        made: the inventory of the lab, as :func:`cluster_inventory` returns it.
        packages: the environment's packages; None to use the indexes.
    """
    children = made["cluster"]["children"]
    for group in ("master", "workers"):
        for variables in children[group]["hosts"].values():
            # The fabric is for containers; Slurm's jobs use the network of its daemons.
            variables["my_ip"] = variables["ansible_host"]
    master = next(iter(children["master"]["hosts"].values()))
    subnet = ipaddress.ip_network(f"{master['my_ip']}/{SUBNET_PREFIX}", strict=False)
    groups = {"hgx": children["master"]["hosts"], "gpu2": children["workers"]["hosts"]}
    gpus = {
        name: {"hosts": {host: {} for host in hosts}, "vars": {"slurm_gpu_type": SLURM_TYPES[name]}}
        for name, hosts in groups.items()
        if hosts
    }
    login: dict[str, Any] = {"hosts": {host: {} for host in groups["hgx"]}}
    variables = {
        **made["cluster"]["vars"],
        "rdm_runtime": "host",
        "rdm_become": False,
        "rdm_subnet": str(subnet),
        # Debian packages venv separately, and the nodes lack it.
        "python_env_method": "uv",
        **(packages.variables() if packages is not None else {}),
        "job_directory": f"{SHARED_AT}/jobs",
        "python_env_directory": f"{SHARED_AT}/python",
        "python_env_shared": True,
        "slurm_partitions": {
            name: {"groups": [name], "default": number == 0} for number, name in enumerate(gpus)
        },
        "slurm_gpu_devices": [f"/dev/nvidia{number}" for number in range(SLURM_GPUS)],
        "slurm_cpus": 16,
        "slurm_memory": 16000,
        "slurm_options": {
            # Both accept hardware that differs from the configuration.
            "SlurmdParameters": "config_overrides",
            "DefMemPerCPU": 100,
            # Earlier than on a real cluster, whose nodes may be away for a while.
            "AuthInfo": "cred_expire=15",
            "SlurmdTimeout": 30,
            "SchedulerParameters": "bf_interval=5,sched_interval=5,bf_resolution=60,bf_hetjob_immediate",
        },
    }
    return {"cluster": {"children": {**children, **gpus, "login": login}, "vars": variables}}


def _archive(name: str, file: str) -> dict[str, Any]:
    return {"name": name, "source": "archive", "path": f"{IMAGES_AT}/{file}", "remote_src": True}


def known_hosts(addresses: Mapping[str, str], keys: Mapping[str, str]) -> str:
    """Return the known_hosts file: node -> address and node -> public host key."""
    return "".join(f"{addresses[node]},{node} {' '.join(keys[node].split()[:2])}\n" for node in addresses)


def ssh_config(addresses: Mapping[str, str], directory: str) -> str:
    """Return a configuration for `ssh -F FILE n1`, for Ansible and people."""
    files = f"{directory}/{FILES_AT}"
    hosts = [section(f"Host {node}", [f"HostName {address}"]) for node, address in addresses.items()]
    settings = [
        f"User {USER}",
        f'IdentityFile "{files}/id_ed25519"',
        "IdentitiesOnly yes",
        *known_only_from(f'"{files}/known_hosts"'),
        "BatchMode yes",
    ]
    return "".join([*hosts, section("Host *", settings)])
