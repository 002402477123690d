# SPDX-License-Identifier: GPL-3.0-or-later
"""The type of a node's facts, which the module node_facts returns and documents.

Not all keys are always there: tests and single roles have parts, and some mappings are empty for nothing.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict


class User(TypedDict, total=False):
    """Who the module runs as."""

    name: str
    uid: int
    home: str
    shell: str
    root: bool


class Stray(TypedDict, total=False):
    """A line of others that sets MY_IP."""

    file: str
    line: int
    value: str
    shells: List[str]
    plain: bool


class Interface(TypedDict, total=False):
    """A network interface."""

    name: str
    mac: str
    addresses: List[str]


class Route(TypedDict, total=False):
    """A route of a table."""

    table: str
    destination: str
    interface: str
    gateway: str


class Subnet(TypedDict, total=False):
    """A subnet of a Docker network."""

    subnet: str
    gateway: str


class Network(TypedDict, total=False):
    """A Docker network."""

    id: str
    name: str
    driver: str
    subnets: List[Subnet]
    options: Dict[str, str]
    labels: Dict[str, str]
    containers: List[str]


class Container(TypedDict, total=False):
    """A container."""

    id: str
    name: str
    image: str
    state: str
    labels: Dict[str, str]
    networks: Dict[str, str]
    job_directory: str
    jobs: List[str]


class Image(TypedDict, total=False):
    """An image of the engine."""

    id: str
    tags: List[str]


class Engine(TypedDict, total=False):
    """A Docker Engine, or a Podman."""

    engine: str
    socket: str
    version: str
    api_version: str
    min_api_version: str
    log_driver: str
    image_store: str
    image_dir: str
    network_plugins: List[str]
    security_options: List[str]
    nvidia: List[str]
    default_address_pools: List[str]
    registry_mirrors: List[str]
    added_mirrors: List[str]
    swarm_address_pools: List[str]
    networks: List[Network]
    containers: List[Container]
    images: List[Image]


NO_ENGINE: Engine = {
    "engine": "",
    "socket": "",
    "version": "",
    "api_version": "",
    "min_api_version": "",
    "log_driver": "",
    "image_store": "",
    "image_dir": "",
    "network_plugins": [],
    "security_options": [],
    "nvidia": [],
    "default_address_pools": [],
    "registry_mirrors": [],
    "added_mirrors": [],
    "swarm_address_pools": [],
    "networks": [],
    "containers": [],
    "images": [],
}


class KubernetesRange(TypedDict, total=False):
    """A range of addresses of Kubernetes."""

    range: str
    of: str
    known: bool


class Kubernetes(TypedDict, total=False):
    """A Kubernetes on the node."""

    name: str
    ranges: List[KubernetesRange]


class OtherEngine(TypedDict, total=False):
    """An engine that the login user may mean instead."""

    kind: str
    name: str
    address: str
    user: str


class ConfigDir(TypedDict, total=False):
    """The directory of the cluster's files."""

    path: str
    why: str


class Disk(TypedDict, total=False):
    """The file system of the images."""

    path: str
    total: int
    free: int


class Memlock(TypedDict, total=False):
    """The limit of locked memory."""

    hard: int
    raise_allowed: bool


class Gpu(TypedDict, total=False):
    """A GPU."""

    vendor: str
    pci: str
    driver: str
    render_node: str


class DeviceNodes(TypedDict, total=False):
    """Device nodes that containers may need."""

    kfd: bool
    dri: List[str]
    nvidia: List[str]
    rdma_cm: bool
    groups: List[int]


class Port(TypedDict, total=False):
    """A port of an RDMA device."""

    port: int
    state: str
    physical_state: str
    rate: str
    link_layer: str
    lid: int
    sm_lid: int


class RdmaDevice(TypedDict, total=False):
    """An RDMA device."""

    name: str
    node_guid: str
    firmware: str
    board_id: str
    type: str
    driver: str
    driver_version: str
    pci: str
    virtual: bool
    char_devices: List[str]
    netdevs: List[str]
    ports: List[Port]


class Vf(TypedDict, total=False):
    """A VF."""

    index: int
    pci: str
    driver: str
    netdev: str
    mac: str
    address: str
    port: str
    policy: str
    vlan: Optional[int]
    trust: Optional[bool]
    spoof_check: Optional[bool]
    by_files: bool
    host_use: str


class Pf(TypedDict, total=False):
    """A PF."""

    pf: str
    pci: str
    total_vfs: int
    num_vfs: int
    driver: str
    infiniband: bool
    autoprobe: Optional[bool]
    bond: str
    vfs: List[Vf]


class Rdma(TypedDict, total=False):
    """RDMA's settings."""

    netns_mode: str
    ofed: bool


class Child(TypedDict, total=False):
    """An IPoIB interface of another partition."""

    name: str
    pkey: str


class Firmware(TypedDict, total=False):
    """An adapter's firmware."""

    tool: str
    error: str
    current: Dict[str, Any]
    next: Dict[str, Any]


class SubnetManager(TypedDict, total=False):
    """Whether the subnet manager answers."""

    answer: str
    text: str


class FabricInterface(TypedDict, total=False):
    """An interface below a container network."""

    name: str
    pci: str
    driver: str
    vendor: str
    total_vfs: int
    num_vfs: int
    virtual: bool
    bond: str
    iommu: str
    children: List[Child]
    siblings: List[str]
    infiniband: bool
    rail: int
    firmware: Firmware
    subnet_manager: SubnetManager


class Boot(TypedDict, total=False):
    """What the node was booted with."""

    cpu: str
    virtual: bool
    iommu: bool
    table: str
    parameters: List[str]


class Opensm(TypedDict, total=False):
    """The node's opensm.conf."""

    path: str
    virt_enabled: str


class NetworkPlugin(TypedDict, total=False):
    """The network plugin."""

    systemd: bool
    unit: bool
    cluster: str
    socket: str
    served_by: str


class AddressInUse(TypedDict, total=False):
    """Who on the wire has an address of the plan."""

    interface: str
    address: str
    mac: str


class Finding(TypedDict, total=False):
    """What is wrong, or could not be read."""

    level: str
    what: str
    text: str


class NodeFacts(TypedDict, total=False):
    """What a node is and has."""

    hostname: str
    architecture: str
    python_requests: bool
    distribution: Dict[str, str]
    user: User
    groups: Dict[str, Optional[int]]
    shells: Dict[str, bool]
    strays: List[Stray]
    interfaces: List[Interface]
    routes: List[Route]
    ssh: Dict[str, str]
    docker_state: str
    docker_error: str
    docker: Optional[Engine]
    pools_to_come: List[str]
    kubernetes: Kubernetes
    other_engines: List[OtherEngine]
    config_dir: ConfigDir
    disk: Disk
    memlock: Memlock
    shared_memory: int
    accelerator: str
    gpus: List[Gpu]
    devices: DeviceNodes
    nvidia_hook: bool
    infiniband: List[RdmaDevice]
    sriov: List[Pf]
    rdma: Rdma
    fabric_interfaces: List[FabricInterface]
    driverless: List[str]
    boot: Boot
    opensm: Opensm
    network_plugin: NetworkPlugin
    config_owner: str
    origin: Dict[str, str]
    hardware: str
    work: Dict[str, List[str]]
    unreachable_mirrors: Dict[str, str]
    foreign_mirror_files: Dict[str, str]
    in_use: List[AddressInUse]
    lock: Dict[str, Any]
    locked: bool
    findings: List[Finding]
