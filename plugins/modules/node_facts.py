#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read everything about a node that the plan needs, in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_facts
short_description: Read everything about a node that the plan needs
description:
  - Returns interfaces, routes, the Docker Engine with its networks, containers and images, GPUs, InfiniBand
    devices, PFs and VFs of SR-IOV, limits, disk space and the operating system.
  - Reads files. Of the vendor's tools it runs, for O(sriov), C(sminfo), and C(mstconfig) or C(mlxconfig)
    where an adapter offers too few VFs.
  - What cannot be read is empty in the result and named in its findings.
  - With O(lock), and where there is work, it takes the lock of the cluster.
extends_documentation_fragment:
  - rdm.provision.attributes.reads
  - rdm.provision.lock
options:
  sysfs_root:
    description: Where the kernel's sysfs is; another directory in tests.
    type: path
    default: /sys
  dev_root:
    description: Where the device nodes are; another directory in tests.
    type: path
    default: /dev
  docker_socket:
    description:
      - Path or C(unix://) address of the Docker Engine's socket.
      - Empty means C(DOCKER_HOST) of the user's environment, else C(/var/run/docker.sock).
    type: str
    default: ""
  config_dir:
    description: Directory that a cluster keeps its files in; C(~) is the user that the module runs as.
    type: path
    default: /etc/rdm
  node:
    description: Name of the node in the inventory, by which running jobs are known; empty skips them.
    type: str
    default: ""
  inputs:
    description:
      - For each role, a digest of what its work on this node depends on, to compare with the state file that
        M(rdm.provision.state_file) has left; an empty text where that is unknown.
      - Empty skips the state file.
    type: dict
    default: {}
  state_file_directory:
    description: Where the state file is; C(~) is the user that the module runs as.
    type: path
    default: /etc/rdm
  key_digests:
    description: For each ssh key of the cluster, its digest on the controller; empty before it is made.
    type: dict
    default: {}
  locks:
    description: Whether the run takes the lock in any case.
    type: bool
    default: false
    version_added: 0.2.0
  addresses:
    description:
      - The container's planned address on the network of each interface. Where the network or the
        container has work, others on the wire are probed (ARP), but not where a container here has it.
    type: dict
    default: {}
    version_added: 0.2.0
  mirrors:
    description:
      - The registry mirrors that the engine is to use, as for M(rdm.provision.registry_mirror). Where images
        have work, they are queried whether they answer.
    type: list
    elements: str
    default: []
    version_added: 0.2.0
  sriov:
    description:
      - The interfaces that the container network is to lie on, and what is wanted of them.
      - Without it no interface is examined closely.
    type: dict
    suboptions:
      interfaces:
        aliases: [parents]
        description: Names of the interfaces.
        type: list
        elements: str
        default: []
      vfs:
        description: How many VFs each has to offer.
        type: int
        default: 0
      firmware_vfs:
        description: How many the firmware shall allow; 0 leaves it as it is.
        type: int
        default: 0
      socket:
        description: The unix socket at which the network plugin is to answer; empty for none.
        type: str
        default: ""
      kernel_parameters:
        description: Whether the IOMMU shall be switched on in the kernel's command line.
        type: bool
        default: false
      vf_devices:
        aliases: [function_devices]
        description:
          - Whether the container gets the RDMA devices of just the VF that it gets. Those of VFs do not
            count for C(hardware) then, since they come and go with containers.
        type: bool
        default: false
"""

EXAMPLES = r"""
- name: Gather facts of the node
  rdm.provision.node_facts:
  register: node_facts

- name: Read a tree of files instead of the node's hardware
  rdm.provision.node_facts:
    sysfs_root: /srv/mi250/sys
    dev_root: /srv/mi250/dev
"""

RETURN = r"""
node:
  description: What the node is and has.
  returned: always
  type: dict
  contains:
    hostname: {description: The node's own name., type: str, sample: gpu-001}
    architecture: {description: The machine's architecture., type: str, sample: x86_64}
    python_requests: {description: Whether the module's Python has the package requests., type: bool}
    distribution:
      description: The distribution as C(id), C(version) and C(name).
      type: dict
      sample: {id: ubuntu, version: "22.04", name: Ubuntu 22.04.3 LTS}
    user: {description: "Who the module runs as: C(name), C(uid), C(home), C(shell), C(root).", type: dict}
    groups: {description: "Ids of the groups C(video), C(render) and C(docker), null for none.", type: dict}
    shells: {description: "Whether C(bash), C(csh) and C(zsh) are installed.", type: dict}
    strays:
      description: >-
        Lines of others that set MY_IP in a shell of the user who logged in, after our own lines:
        C(file), C(line), C(value), C(shells), and C(plain), whether the line does nothing else.
      type: list
      elements: dict
      sample: [{file: /home/me/.bashrc, line: 12, value: 10.0.0.9, shells: [login shells], plain: true}]
    interfaces:
      description: Network interfaces with C(name), C(mac) and C(addresses).
      type: list
      elements: dict
      sample: [{name: ib0, mac: "00:00:10:29", addresses: [10.0.0.1/24]}]
    routes:
      description: IPv4 routes of all tables with C(table), C(destination), C(interface) and C(gateway).
      type: list
      elements: dict
      sample: [{table: main, destination: default, interface: eth0, gateway: 10.0.0.254}]
    ssh: {description: "Ends of the ssh connection: C(client), C(server); empty without one.", type: dict}
    docker_state:
      description: One of C(ok), C(absent), C(stopped), C(paused), C(forbidden).
      type: str
      sample: ok
    docker_error: {description: Why C(docker) is null; empty when it is not., type: str, sample: ""}
    docker:
      description: The Docker Engine; null when it cannot be used.
      type: dict
      contains:
        engine: {description: "What answers, C(docker) or C(podman).", type: str, sample: docker}
        socket: {description: Path of its socket., type: str, sample: /var/run/docker.sock}
        version: {description: The engine's version., type: str, sample: 20.10.24}
        api_version: {description: The newest API that it speaks., type: str, sample: "1.41"}
        min_api_version: {description: The oldest API that it speaks., type: str, sample: "1.12"}
        log_driver: {description: What keeps the logs of containers., type: str, sample: local}
        image_store: {description: C(classic) or C(containerd)., type: str, sample: classic}
        image_dir: {description: Where images are stored., type: str, sample: /var/lib/docker}
        network_plugins: {description: Network drivers that the engine has., type: list, elements: str}
        security_options:
          description: What secures the engine, such as C(selinux), C(userns) and C(rootless).
          type: list
          elements: str
        nvidia:
          description: How the engine says that it gives out NVIDIA GPUs, C(runtime) and C(cdi).
          type: list
          elements: str
        default_address_pools:
          description: Where the engine takes subnets of its own choice from.
          type: list
          elements: str
          sample: [172.17.0.0/16]
        registry_mirrors:
          description: The mirrors that the engine uses for Docker Hub, in its order.
          type: list
          elements: str
        added_mirrors:
          description: What C(images_mirror) has added to the engine's configuration.
          type: list
          elements: str
        swarm_address_pools:
          description: Where its swarm takes those of overlay networks from; empty without a swarm.
          type: list
          elements: str
        networks:
          description:
            - Networks with C(id), C(name), C(driver), C(subnets), C(options), C(labels) and C(containers).
            - C(subnets) have C(subnet) and C(gateway). C(containers) names those that are attached, stopped
              ones included.
          type: list
          elements: dict
        containers:
          description:
            - All containers with C(id), C(name), C(image), C(state), C(labels), C(networks), C(job_directory)
              and C(jobs).
            - C(networks) maps a network's name to the address there.
            - C(jobs) names the training jobs that run in it, and C(job_directory) is where they are.
          type: list
          elements: dict
        images: {description: "Images with C(id) and C(tags).", type: list, elements: dict}
    pools_to_come:
      description:
        - The default address pools, as in C(docker), that an engine on this node would have; empty where
          there is one.
      type: list
      elements: str
    kubernetes:
      description:
        - The Kubernetes that runs on the node, C(name) (empty for none) and C(ranges) with C(range), C(of)
          (C(pods) or C(services)) and C(known), false for what is only usual.
      type: dict
      sample: {name: k3s, ranges: [{range: 10.43.0.0/16, of: services, known: false}]}
    other_engines:
      description:
        - Engines that the login user may mean instead, as C(kind) (C(rootless) or C(context)), C(name),
          C(address) and C(user).
        - Empty where the user has chosen a socket.
      type: list
      elements: dict
    config_dir:
      description:
        - Where O(config_dir) is, C(path), and C(why) nothing can be written there, C(read-only), C(full),
          C(forbidden), or empty.
      type: dict
      sample: {path: /etc/rdm, why: ""}
    disk: {description: "Bytes C(total) and C(free) where images are stored, C(path).", type: dict}
    memlock:
      description:
        - C(hard) is the limit of locked memory of the Docker daemon in bytes, -1 for none. Without a daemon,
          that of this process.
        - C(raise_allowed) says whether its containers may have no limit.
      type: dict
      sample: {hard: 8388608, raise_allowed: true}
    shared_memory: {description: "Bytes that C(/dev/shm) may have, 0 where there is none.", type: int}
    accelerator: {description: "One of C(rocm), C(cuda), C(cpu).", type: str, sample: rocm}
    gpus:
      description: GPUs with C(vendor), C(pci), C(driver) and C(render_node).
      type: list
      elements: dict
    devices:
      description:
        - Device nodes C(kfd), C(dri), C(nvidia), C(rdma_cm).
        - C(groups) has the ids of the groups that own those of AMD's GPUs.
      type: dict
    nvidia_hook: {description: Whether the hook of NVIDIA's container toolkit is installed., type: bool}
    infiniband:
      description:
        - RDMA devices with C(name), C(node_guid), C(firmware), C(board_id), C(type), C(driver),
          C(driver_version), C(pci), C(virtual), C(char_devices), C(netdevs) and C(ports).
        - Each port has C(port), C(state), C(physical_state), C(rate), C(link_layer), C(lid) and C(sm_lid).
      type: list
      elements: dict
    sriov:
      description:
        - Physical functions with C(pf), C(pci), C(total_vfs), C(num_vfs), C(driver), C(infiniband),
          C(autoprobe), C(bond) and C(vfs).
        - Each VF has C(index), C(pci), C(driver), C(netdev) and C(mac), which are empty when a container has
          it, and what the physical function gives it, C(address), C(port), C(policy), C(vlan), C(trust),
          C(spoof_check) and C(by_files). C(host_use) says what the node itself does with C(netdev).
      type: list
      elements: dict
    rdma:
      description:
        - C(netns_mode), V(shared) or V(exclusive), empty where the kernel does not say.
        - C(ofed), whether the drivers are those of MLNX_OFED or DOCA-OFED.
      type: dict
      sample: {netns_mode: shared, ofed: false}
    fabric_interfaces:
      description:
        - The interfaces of O(sriov) that exist, with C(name), C(pci), C(driver), C(vendor), C(total_vfs),
          C(num_vfs), C(virtual), C(bond), C(iommu), C(children), C(siblings) and C(infiniband).
        - C(children) are its interfaces of other partitions, with C(name) and C(pkey).
        - C(rail) is the place that it has among those wanted.
        - C(firmware) is how the firmware is set, with C(tool), C(error), C(current) and C(next), and
          C(subnet_manager) whether that answers, with C(answer) and C(text); empty where it was not queried.
      type: list
      elements: dict
    driverless:
      description: Network cards without a driver, listed where an interface of O(sriov) does not exist.
      type: list
      elements: str
      sample: ["0000:41:00.0 (15b3:101b)"]
    boot:
      description:
        - What the node was booted with, C(cpu), C(virtual), C(iommu), C(table) and C(parameters); empty where
          no VFs are wanted.
      type: dict
      sample: {cpu: intel, virtual: false, iommu: true, table: DMAR, parameters: [intel_iommu=on, iommu=pt]}
    opensm:
      description: The node's opensm.conf, C(path) and its C(virt_enabled); empty for none.
      type: dict
    network_plugin:
      description:
        - The network plugin rdm-sriov where a systemd unit runs it, as C(unit) (whether there is one),
          and C(cluster) (whose it is); C(systemd) says whether systemd runs here.
        - C(served_by) says who answers at C(socket), that of O(sriov), V(rdm-sriov), V(another) or nobody.
      type: dict
      sample:
        systemd: true
        unit: true
        cluster: rdm
        socket: /run/docker/plugins/sriov.sock
        served_by: rdm-sriov
    config_owner:
      description: Name of the cluster whose files O(config_dir) holds; empty for none.
      type: str
      sample: rdm
    origin:
      description:
        - Where that cluster was made, as far as its files on the node say so.
        - C(authority) is the fingerprint of the key that signs its containers' host keys, and C(my_ip) the
          node's address.
        - Empty texts where there are no such files.
      type: dict
      sample: {authority: "SHA256:5MRE8yuq", my_ip: 192.169.16.100}
    hardware:
      description: Digest of all that decides what containers get of the node.
      type: str
      sample: sha256:0f343b0931126a20
    work:
      description:
        - For each role of O(inputs) that has something to do here, the reasons, in sentences.
        - Empty when the state file of the last run holds.
      type: dict
      sample: {hostfile: ["/etc/rdm/job/hostfile has changed: content"]}
    unreachable_mirrors:
      description: Why mirrors of O(mirrors) cannot be used.
      type: dict
      sample: {"http://cache:5000": does not answer (timed out)}
    foreign_mirror_files:
      description: The C(hosts.toml) files that keep mirrors of O(mirrors) from being set, by registry.
      type: dict
      sample: {nvcr.io: /etc/docker/certs.d/nvcr.io/hosts.toml}
    in_use:
      description: Who on the wire has an address of O(addresses), as C(interface), C(address) and C(mac).
      type: list
      elements: dict
      sample: [{interface: ib0, address: 192.169.16.100, mac: "02:42:c0:a9:10:64"}]
    lock:
      description:
        - Who else is changing the cluster on this node, as C(run) and C(leader); empty for nobody.
      type: dict
    locked: {description: Whether the run of O(lock) holds the lock now., type: bool}
    findings:
      description: What is wrong or could not be read, as C(level) (error or warning), C(what) and C(text).
      type: list
      elements: dict
      sample: [{level: warning, what: ip-missing, text: the ip command (package iproute2) is missing}]
"""

import importlib.util
import os
import platform
from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base import host, shell_variable
from ansible_collections.rdm.provision.plugins.module_utils.base.facts import (
    Gpu,
    NodeFacts,
    RdmaDevice,
)
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.iproute2 import IpMissing, ip_json
from ansible_collections.rdm.provision.plugins.module_utils.base.local_path import local_path
from ansible_collections.rdm.provision.plugins.module_utils.constants import ACCELERATORS, CONFIG_DIR
from ansible_collections.rdm.provision.plugins.module_utils.container.spec import container_spec
from ansible_collections.rdm.provision.plugins.module_utils.docker import (
    engine_facts,
    podman,
    registry_hosts,
    registry_mirrors,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import (
    DEFAULT_SOCKET,
    DockerAPI,
    DockerForbidden,
    DockerProblem,
    DockerUnavailable,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.other_engines import other_engines
from ansible_collections.rdm.provision.plugins.module_utils.hardware import iommu, rdma_tools, sysfs
from ansible_collections.rdm.provision.plugins.module_utils.jobs.running_jobs import running_jobs
from ansible_collections.rdm.provision.plugins.module_utils.network import arp, interfaces, kubernetes
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin import installation
from ansible_collections.rdm.provision.plugins.module_utils.sriov import observed_vfs, pf
from ansible_collections.rdm.provision.plugins.module_utils.state import node_lock, state_file
from ansible_collections.rdm.provision.plugins.module_utils.state.cluster_files import origin

ARGUMENT_SPEC = {
    "sysfs_root": {"type": "path", "default": "/sys"},
    "dev_root": {"type": "path", "default": "/dev"},
    "docker_socket": {"type": "str", "default": ""},
    "config_dir": {"type": "path", "default": CONFIG_DIR},
    "node": {"type": "str", "default": ""},
    "inputs": {"type": "dict", "default": {}},
    "state_file_directory": {"type": "path", "default": CONFIG_DIR},
    "key_digests": {"type": "dict", "default": {}, "no_log": False},
    "addresses": {"type": "dict", "default": {}},
    "mirrors": {"type": "list", "elements": "str", "default": []},
    "lock": {"type": "dict", "options": node_lock.ARGUMENTS},
    "locks": {"type": "bool", "default": False},
    "sriov": {
        "type": "dict",
        "options": {
            "interfaces": {
                "type": "list",
                "elements": "str",
                "default": [],
                "aliases": ["parents"],
                "deprecated_aliases": [
                    {"name": "parents", "version": "0.8.0", "collection_name": "rdm.provision"}
                ],
            },
            "vfs": {"type": "int", "default": 0},
            "firmware_vfs": {"type": "int", "default": 0},
            "socket": {"type": "str", "default": ""},
            "kernel_parameters": {"type": "bool", "default": False},
            "vf_devices": {
                "type": "bool",
                "default": False,
                "aliases": ["function_devices"],
                "deprecated_aliases": [
                    {"name": "function_devices", "version": "0.8.0", "collection_name": "rdm.provision"}
                ],
            },
        },
    },
}


class Findings(list):  # type: ignore[type-arg]  # a subscripted list needs Python 3.9
    """Problems of the node, and what could not be read."""

    def add(self, level: str, what: str, text: str) -> None:
        """Add one finding: level error or warning, a short key, one sentence."""
        self.append({"level": level, "what": what, "text": text})

    def guard(self, what: str, read: Callable[..., Any], *arguments: Any, otherwise: Any) -> Any:
        """Return the result of a reader; if it fails, add a finding and return `otherwise`.

        Readers treat files that may be missing as empty. This handles all other errors: one odd file must not
        hide all other facts of the node.
        """
        try:
            return read(*arguments)
        except Exception as error:
            text = "{0} cannot be read: {1}: {2}".format(what, type(error).__name__, error)
            self.add("error", "unreadable-" + what, text)
            return otherwise


def node_facts(
    sysfs_root: str,
    dev_root: str,
    docker_socket: str,
    config_dir: str = CONFIG_DIR,
    node: str = "",
    inputs: dict[str, str] | None = None,
    state_file_directory: str = CONFIG_DIR,
    key_digests: dict[str, str] | None = None,
    lock: dict[str, Any] | None = None,
    locks: bool = False,
    addresses: dict[str, str] | None = None,
    sriov: dict[str, Any] | None = None,
    mirrors: list[str] | None = None,
) -> NodeFacts:
    """Return the facts of this node; see RETURN."""
    findings = Findings()
    login_user = host.login_user()
    found: NodeFacts = {
        "hostname": platform.node(),
        "architecture": os.uname().machine,
        "python_requests": importlib.util.find_spec("requests") is not None,
        "distribution": host.distribution(host.read_text("/etc/os-release")),
        "user": host.user(),
        "groups": host.groups("video", "render", "docker"),
        "shells": {shell: host.installed(shell) for shell in ("bash", "csh", "zsh")},
        "strays": findings.guard(
            "shells",
            shell_variable.strays,
            "MY_IP",
            login_user["home"],
            os.geteuid() == 0,
            host.installed("zsh"),
            otherwise=[],
        ),
        "config_owner": host.read_text(os.path.join(local_path(config_dir), "cluster")).strip(),
        "config_dir": {
            "path": local_path(config_dir),
            "why": findings.guard("config-dir", host.not_writable, local_path(config_dir), otherwise=""),
        },
        "origin": origin(config_dir, state_file_directory),
        "ssh": findings.guard("ssh", interfaces.ssh_connection, otherwise={"client": "", "server": ""}),
    }
    found.update(_network(findings, sysfs_root))
    found["kubernetes"] = findings.guard(
        "kubernetes", kubernetes.kubernetes, otherwise={"name": "", "ranges": []}
    )
    found.update(_docker(findings, docker_socket, node))
    output = docker_socket or os.environ.get("DOCKER_HOST", "")
    found["other_engines"] = (
        [] if output else findings.guard("contexts", other_engines, login_user, DEFAULT_SOCKET, otherwise=[])
    )
    found.update(_hardware(findings, sysfs_root, dev_root))
    found["network_plugin"] = findings.guard(
        "network-plugin",
        installation.facts,
        (sriov or {}).get("socket") or "",
        otherwise={"systemd": False, "unit": False, "cluster": "", "socket": "", "served_by": ""},
    )
    found["hardware"] = _hardware_digest(found, bool((sriov or {}).get("vf_devices")))
    found.update(_fabric_interfaces(findings, found["infiniband"], sysfs_root, sriov or {}))
    found["work"] = _work(found, state_file_directory, inputs or {}, key_digests or {}, sysfs_root)
    unready = pf.unready(found["fabric_interfaces"], found["boot"], sriov or {})
    if unready and "sriov" in (inputs or {}):
        found["work"].setdefault("sriov", []).extend(unready)
    found.update(_mirrors(found, mirrors or [], bool(inputs)))
    found["in_use"] = findings.guard("wire", _in_use, found, addresses or {}, sysfs_root, otherwise=[])
    found.update(_lock(findings, lock, locks or bool(found["work"]), found["config_owner"]))
    found["findings"] = findings
    return found


def _mirrors(found: NodeFacts, wanted: list[str], compares: bool) -> NodeFacts:
    """Return why mirrors cannot be used. If the engine lacks one, the role images has work."""
    docker = found["docker"]
    foreign: dict[str, str] = {}
    lacking: list[str] = []
    if docker and wanted:
        foreign = registry_hosts.foreign_files(docker["socket"], wanted)
        lacking = [
            url for url in registry_mirrors.of_docker_hub(wanted) if url not in docker["registry_mirrors"]
        ] + registry_hosts.lacking(docker["socket"], wanted)
    if compares and lacking:
        reasons = ["the engine does not use the mirror {0}".format(one) for one in lacking]
        found["work"].setdefault("images", []).extend(reasons)
    checked = wanted if not compares or "images" in found["work"] else []
    problems = {
        one: registry_mirrors.unreachable(registry_mirrors.split(one)[1])
        for one in checked
        if registry_mirrors.is_mirror(one)
    }
    unreachable = {one: problem for one, problem in problems.items() if problem}
    return {"unreachable_mirrors": unreachable, "foreign_mirror_files": foreign}


def _in_use(found: NodeFacts, addresses: dict[str, str], sysfs_root: str) -> list[dict[str, str]]:
    """Return which hosts already have the addresses. Probe only if needed, since it takes a second."""
    if not {"network", "container"}.intersection(found["work"]):
        return []
    containers = (found["docker"] or {}).get("containers") or []
    up = [one for one in containers if one["state"] not in ("created", "exited", "dead")]
    here = {address for one in up for address in one["networks"].values()}
    here.update(one.partition("/")[0] for link in found["interfaces"] for one in link["addresses"])
    return arp.in_use({name: one for name, one in addresses.items() if one not in here}, sysfs_root)


def _lock(findings: Findings, wanted: dict[str, Any] | None, takes: bool, cluster: str) -> NodeFacts:
    """Take the lock if the run is going to change the node, else return its holder."""
    holder: node_lock.Holder = {}
    locked = False
    if wanted and takes:
        try:
            holder = node_lock.take(wanted)
            locked = not holder
        except OSError as error:
            text = "the node cannot be locked against other runs: {0}: {1}"
            findings.add("warning", "no-lock", text.format(error.filename, error.strerror))
    elif wanted or cluster:
        holder = node_lock.holder(wanted["cluster"] if wanted else cluster)
    return {"lock": holder, "locked": locked}


def _work(
    found: NodeFacts, directory: str, inputs: dict[str, str], keys: dict[str, str], sysfs_root: str
) -> dict[str, list[str]]:
    """Return which roles have work, and why."""
    kept = state_file.read(directory) if inputs else {}
    seen = None
    if kept and found["docker"]:
        try:
            api = DockerAPI(found["docker"]["socket"])
            seen = state_file.observe(kept["watch"], found["hardware"], api, sysfs_root)
        except DockerProblem:
            pass  # it has just stopped, so there is work
    work = state_file.to_do(kept, inputs, keys, seen)
    if inputs and not (found["docker"] and found["python_requests"]):
        work.setdefault("docker_engine", ["the engine or its client library is not ready"])
    return work


def _network(findings: Findings, sysfs_root: str) -> NodeFacts:
    try:
        found = interfaces.interfaces(ip_json("addr", "show"))
        routes = interfaces.routes(ip_json("-4", "route", "show", "table", "all"))
        return {"interfaces": found, "routes": routes}
    except IpMissing as problem:
        text = "{0}, so only the main routing table and one IPv4 address per interface are known"
        findings.add("warning", "ip-missing", text.format(problem))
    except (KeyError, TypeError, AttributeError) as error:
        findings.add("warning", "ip-unreadable", "the output of ip -j is not understood: {0!r}".format(error))
    return {
        "interfaces": findings.guard(
            "interfaces", interfaces.interfaces_without_ip, sysfs_root, otherwise=[]
        ),
        "routes": findings.guard(
            "routes",
            interfaces.routes_without_ip,
            host.read_text("/proc/net/route"),
            otherwise=[],
        ),
    }


def _docker(findings: Findings, socket: str, node: str) -> NodeFacts:
    state, error, docker = "ok", "", None
    pid = 0
    programs = podman.serving("")
    try:
        api = DockerAPI(socket)
        programs = podman.serving(api.socket)
        pid = findings.guard("daemon", host.daemon_pid, api.socket, "/proc", programs, otherwise=0)
        found = engine_facts.read(api, host.read_text(host.daemon_config(pid)))
        found["added_mirrors"] = [
            *registry_mirrors.recorded(host.daemon_config(pid)).get("mirrors", []),
            *registry_hosts.entries(registry_hosts.own_files(api.socket).values()),
        ]
        for container in found["containers"]:
            container["jobs"] = running_jobs(container["job_directory"], node) if node else []
        docker = found  # all of it, or nothing
    except DockerForbidden as problem:
        state, error = "forbidden", str(problem)
    except DockerUnavailable as problem:
        state, error = "stopped" if host.installed(programs[0]) else "absent", str(problem)
        if pid and host.is_paused(pid):
            state = "paused"
            error += "; its process {0} is paused (kill -CONT {0} lets it go on)".format(pid)
    except DockerProblem as problem:
        state, error = "stopped", str(problem)
    except Exception as problem:
        # The engine's answer does not conform to its API.
        state, error = (
            "stopped",
            "Docker Engine at {0} cannot be read: {1!r}".format(socket or DEFAULT_SOCKET, problem),
        )
    image_dir = docker["image_dir"] if docker else "/var/lib/docker"
    memlock = findings.guard(
        "memlock",
        host.memlock,
        pid,
        otherwise={"hard": 0, "raise_allowed": False},
    )
    if docker and not pid:
        memlock["raise_allowed"] = True
        findings.add(
            "warning",
            "daemon-hidden",
            "the Docker daemon's process cannot be seen (is /proc mounted with hidepid?), so containers are "
            "assumed to get as much locked memory as they request",
        )
    of_podman = docker and docker.get("engine") == "podman"
    if of_podman and os.path.isdir("/run/systemd/system") and not podman.restarts_at_boot():
        findings.add(
            "warning",
            "podman-restart",
            "Podman starts no container when the node boots: systemctl enable podman-restart.service changes "
            "that",
        )
    return {
        "docker": docker,
        "docker_state": state,
        "docker_error": error,
        "pools_to_come": []
        if docker
        else engine_facts.default_address_pools({}, host.read_text(host.daemon_config(0))),
        "disk": findings.guard(
            "disk", host.disk, image_dir, otherwise={"path": image_dir, "total": 0, "free": 0}
        ),
        "memlock": memlock,
        "shared_memory": findings.guard("shared-memory", host.shared_memory, otherwise=0),
    }


def _hardware(findings: Findings, sysfs_root: str, dev_root: str) -> NodeFacts:
    gpus = findings.guard("gpus", sysfs.gpus, sysfs_root, otherwise=[])
    devices = findings.guard(
        "devices",
        sysfs.device_nodes,
        dev_root,
        otherwise={"kfd": False, "dri": [], "nvidia": [], "rdma_cm": False, "groups": []},
    )
    infiniband = findings.guard("infiniband", sysfs.infiniband, sysfs_root, dev_root, otherwise=[])
    sriov = findings.guard("sriov", observed_vfs.facts, sysfs_root, otherwise=[])
    _check_gpus(findings, gpus)
    _check_infiniband(findings, infiniband)
    return {
        "gpus": gpus,
        "accelerator": sysfs.accelerator(gpus),
        "devices": devices,
        "nvidia_hook": host.installed("nvidia-container-runtime-hook"),
        "infiniband": infiniband,
        "sriov": sriov,
    }


def _hardware_digest(found: NodeFacts, vf_devices: bool) -> str:
    """Return the digest of the hardware that containers get, without VFs' RDMA devices if VFs are watched.

    In RDMA's mode exclusive the node does not show the devices in a container, and in any mode a run that
    creates VFs finds their devices only afterwards.
    """
    if vf_devices:
        lasting = [device for device in found["infiniband"] if not device["virtual"]]
        found = {**found, "infiniband": lasting}
    return state_file.digest([container_spec(found, one) for one in ACCELERATORS])


def _fabric_interfaces(
    findings: Findings, infiniband: list[RdmaDevice], sysfs_root: str, wanted: dict[str, Any]
) -> NodeFacts:
    rails: dict[str, int] = {}
    for rail, named in enumerate(wanted.get("interfaces") or []):
        # The plan refuses a function that is named twice, by interface and by PCI address.
        rails.setdefault(observed_vfs.device_of(named, sysfs_root)[0], rail)
    examined = []
    for name, rail in rails.items():
        if not name:
            continue
        one = findings.guard(name, pf.fabric_interface, name, sysfs_root, otherwise=None)
        if one is None:
            continue
        one["rail"] = rail
        needs_firmware = pf.firmware_needed(one, wanted.get("vfs") or 0)
        one["firmware"] = rdma_tools.firmware_settings(one["pci"]) if needs_firmware else {}
        one["subnet_manager"] = pf.subnet_manager(name, infiniband)
        examined.append(one)
    line = host.read_text("/proc/cmdline") if wanted.get("vfs") else ""
    booted = wanted.get("vfs") and any(one["pci"] for one in examined)
    return {
        "rdma": pf.rdma(sysfs_root) if infiniband else {},
        "fabric_interfaces": examined,
        # A missing driver may be why an interface is missing.
        "driverless": findings.guard("driverless", pf.driverless, sysfs_root, otherwise=[])
        if "" in rails
        else [],
        "boot": findings.guard("boot", iommu.read, sysfs_root, line, otherwise={}) if booted else {},
        "opensm": pf.opensm() if infiniband else {},
    }


def _check_gpus(findings: Findings, gpus: list[Gpu]) -> None:
    unserved = sysfs.unserved(gpus)
    if unserved:
        described = [
            "{0[vendor]} GPU {0[pci]} ({1})".format(gpu, gpu["driver"] or "none") for gpu in unserved
        ]
        findings.add("warning", "gpu-driver", "no compute driver serves " + ", ".join(described))
    elif len({gpu["vendor"] for gpu in gpus}) > 1:
        findings.add("warning", "gpu-vendors", "there are AMD and NVIDIA GPUs; containers get one kind only")


def _check_infiniband(findings: Findings, infiniband: list[RdmaDevice]) -> None:
    without = [
        device["name"]
        for device in infiniband
        if not any(path.startswith("/dev/infiniband/uverbs") for path in device["char_devices"])
    ]
    if without:
        text = "{0} cannot be used from programs: no /dev/infiniband/uverbs* (module ib_uverbs)"
        findings.add("warning", "uverbs-missing", text.format(", ".join(without)))


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> dict[str, Any]:
    """Return the module's result."""
    return {"node": node_facts(**module.params)}


if __name__ == "__main__":
    main()
