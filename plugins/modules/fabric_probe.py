#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure from a node's container the round-trip times to the cluster's other containers on the fabric."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_probe
short_description: Measure how the other containers of a cluster answer over the fabric
description:
  - Runs one small program in the training container of this node. It sends ICMP echo requests to MY_IP of
    every other node in O(nodes), all at the same time, and reads the greeting of the next few nodes' sshd.
  - With O(ssh) it also logs in to its own container and to that of the next node, as root does, with key and
    host key. So each container of a cluster is tried as a client and as a server.
  - Whatever the number of nodes, it ends within O(deadline) for each rail, plus what the engine needs to
    start a process.
  - What cannot be measured is not a failure of this module but a RV(reason). The action
    M(rdm.provision.fabric_result) evaluates the measurements of all nodes together.
  - Reads only. The image of the container needs C(python3) (3.7 or newer), nothing else.
version_added: 0.1.0
extends_documentation_fragment: rdm.provision.attributes.reads
attributes:
  check_mode:
    support: full
    description: It changes nothing, so it measures in check mode, too.
options:
  node:
    description: Name of this node, as in O(nodes).
    type: str
    required: true
  nodes:
    description:
      - This node and those that it is to measure, in the order of ranks, one line C(name MY_IP) per node.
      - With the text of the address map it measures the whole cluster, with some of its lines a sample.
    type: str
    required: true
  container:
    description: Name of the training container.
    type: str
    default: rdm
  deadline:
    description: Seconds that the whole measurement may last.
    type: float
    default: 10.0
  timeout:
    description: Seconds that a silent peer gets after its regular tries, and an sshd until it greets.
    type: float
    default: 5.0
  tries:
    description: Echo requests to each peer. The median of their times counts.
    type: int
    default: 3
  ssh:
    description: Whether an sshd must answer on the fabric address of the peers.
    type: bool
    default: true
  ssh_port:
    description: Port of that sshd.
    type: int
    default: 22
  ssh_peers:
    description:
      - How many of those that follow this node in O(nodes) have their sshd probed.
      - Each sshd is then probed by as many nodes, not by all, because one that is probed by a thousand
        at once drops connections at random.
    type: int
    default: 8
  rails:
    description:
      - Name and subnet of each rail, where there are several; O(nodes) has the addresses in the first one's.
      - The others are measured after it, without ssh. A node has the same place in each subnet.
    type: dict
    default: {}
    version_added: 0.2.0
  docker_socket:
    description: Path of the engine's socket. Empty means E(DOCKER_HOST), else C(/var/run/docker.sock).
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Measure how the other containers answer
  rdm.provision.fabric_probe:
    node: "{{ inventory_hostname }}"
    nodes: "{{ preflight_plan.address_map }}"
    container: rdm
  register: fabric_measurement
"""

RETURN = r"""
measured: {description: Whether there are measurements., returned: always, type: bool}
reason:
  description: Why there are none, in one sentence.
  returned: always
  type: str
  sample: "there is no container rdm"
container_state:
  description: State of the container as the engine names it; V(missing) where there is none.
  returned: always
  type: str
  sample: running
method:
  description: V(icmp), or V(tcp) where the container may not send ICMP.
  returned: when measured
  type: str
  sample: icmp
note: {description: Why the method is not V(icmp)., returned: when measured, type: str}
link:
  description: The interface in the container that has MY_IP, and whether it is up and has a carrier.
  returned: when measured
  type: dict
  sample: {name: eth0, up: true}
duplicate:
  description: Who else on the wire has MY_IP, in one sentence; empty for nobody.
  returned: when measured
  type: str
  sample: 192.169.16.100 is used by 02:42:c0:a9:10:64 on the wire below eth0, too
  version_added: 0.2.0
rtt_us:
  description:
    - Median and least round-trip time to each peer in microseconds, one line C(name median least) per peer,
      beginning with the one that follows this node.
    - A line C(name -) means that the peer did not answer.
    - It is one text, because the numbers of a thousand nodes with a thousand peers each would fill the
      controller's memory.
  returned: when measured
  type: str
  sample: "n2 95.1 80.0\nn3 -\n"
loss:
  description: Share of requests without answer, for the nodes that answered some and not others.
  returned: when measured
  type: dict
  sample: {n3: 0.33}
errors:
  description: The kernel's error message where a request to a silent node could not be sent.
  returned: when measured
  type: dict
  sample: {n3: network is unreachable}
ssh:
  description: For each node whose sshd was probed, what is wrong with it; empty when it greets.
  returned: when measured
  type: dict
  sample: {n2: "", n3: connection refused}
login:
  description: For this node and the next, why ssh could not log in there; empty when it could.
  returned: when measured
  type: dict
  sample: {n1: "", n2: Host key verification failed}
rails:
  description: What was measured on each further rail, in the order of O(rails); for each the keys above.
  returned: when the container runs, with several rails
  type: list
  elements: dict
"""

from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.docker import container_program
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerProblem
from ansible_collections.rdm.provision.plugins.module_utils.docker.container_program import NotMeasuredError
from ansible_collections.rdm.provision.plugins.module_utils.fabric.answers import packed, parse_nodes
from ansible_collections.rdm.provision.plugins.module_utils.network.rails import in_subnet

if TYPE_CHECKING:
    # Ansible packs what it finds imported here. The module sends the program's source, and never imports it.
    from ansible_collections.rdm.provision.plugins.module_utils.fabric import probe_script  # noqa: F401

PROGRAM = "ansible_collections.rdm.provision.plugins.module_utils.fabric.probe_script"

ARGUMENT_SPEC: dict[str, Any] = {
    "node": {"type": "str", "required": True},
    "nodes": {"type": "str", "required": True},
    "container": {"type": "str", "default": "rdm"},
    "deadline": {"type": "float", "default": 10.0},
    "timeout": {"type": "float", "default": 5.0},
    "tries": {"type": "int", "default": 3},
    "ssh": {"type": "bool", "default": True},
    "ssh_port": {"type": "int", "default": 22},
    "ssh_peers": {"type": "int", "default": 8},
    "rails": {"type": "dict", "default": {}},
    "docker_socket": {"type": "str", "default": ""},
}


def checked(parameters: dict[str, Any]) -> dict[str, str]:
    """Return MY_IP by name of the nodes to measure, including this one.

    Raises:
        ValueError: an option is wrong; the text says why.
    """
    nodes = parse_nodes(parameters["nodes"])
    if not nodes:
        raise ValueError("the list of the cluster's nodes is empty: run the role preflight first")
    if parameters["node"] not in nodes:
        raise ValueError("{0} is not among the nodes of the cluster".format(parameters["node"]))
    for name in ("deadline", "tries"):
        if parameters[name] <= 0:
            raise ValueError("{0} must be more than 0, not {1}".format(name, parameters[name]))
    return nodes


def all_rails(parameters: dict[str, Any], nodes: dict[str, str]) -> dict[str, Any]:
    """Return the measurements of this node's container, rail by rail; or why there are none.

    Args:
        parameters: the options of this module.
        nodes: MY_IP by name, in rank order.

    Raises:
        ValueError: a rail's subnet is not a subnet.
    """
    subnets = [IPv4Network(subnet) for subnet in parameters["rails"].values()]
    found = [_measured(parameters, nodes)]
    # If no container runs, the other rails would fail in the same way. A running one may lack one address.
    for subnet in subnets[1:] if found[0]["container_state"] == "running" else ():
        there = {name: in_subnet(address, subnets[0], subnet) for name, address in nodes.items()}
        found.append(_measured({**parameters, "ssh": False}, there))
    return dict(found[0], rails=found[1:]) if found[1:] else found[0]


def _measured(parameters: dict[str, Any], nodes: dict[str, str]) -> dict[str, Any]:
    try:
        return measure(parameters, nodes)
    except NotMeasuredError as error:
        return {"measured": False, "reason": str(error), "container_state": error.state}


def measure(parameters: dict[str, Any], nodes: dict[str, str]) -> dict[str, Any]:
    """Return the measurements of this node's container on one rail.

    Args:
        parameters: the options of this module.
        nodes: the addresses on that rail by name, in rank order.

    Raises:
        NotMeasuredError: with the reason.
    """
    node, container = parameters["node"], parameters["container"]
    names = list(nodes)
    rank = names.index(node)
    # Each node starts with its successor, so that the nodes do not all query the same one at once.
    peers = names[rank + 1 :] + names[:rank]
    login = {nodes[name]: name for name in [node, *peers[:1]]} if parameters["ssh"] else {}
    settings = {
        "source": nodes[node],
        "peers": [nodes[name] for name in peers],
        "tries": parameters["tries"],
        "deadline": parameters["deadline"],
        "timeout": parameters["timeout"],
        "port": parameters["ssh_port"],
        "ssh": list(range(min(len(peers), parameters["ssh_peers"]))) if parameters["ssh"] else [],
        "login": list(login),
    }
    try:
        docker = DockerAPI(parameters["docker_socket"])
    except DockerProblem as error:
        raise NotMeasuredError(str(error), "unknown") from error
    result = container_program.run(
        docker, container, PROGRAM, container_program.pieces(settings), parameters["deadline"]
    )
    if result["problem"]:
        raise NotMeasuredError("container {0}: {1}".format(container, result["problem"]), "running")

    counts = list(zip(peers, result["sent"], result["answered"]))
    return {
        "measured": True,
        "reason": "",
        "container_state": "running",
        "method": result["method"],
        "note": result["note"],
        "link": result["link"],
        "duplicate": "{0} is used by {1} on the wire below {2}, too".format(
            nodes[node], result["also"], result["link"]["name"]
        )
        if result["also"]
        else "",
        "rtt_us": packed(zip(peers, result["rtt_us"], result["min_us"])),
        "loss": {name: round(1 - got / sent, 2) for name, sent, got in counts if 0 < got < sent},
        "errors": {peers[int(index)]: text for index, text in result["errors"].items()},
        "ssh": {peers[int(index)]: text for index, text in result["ssh"].items()},
        "login": {login[address]: text for address, text in result["login"].items()},
    }


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> dict[str, Any]:
    """Return the module's result."""
    try:
        return all_rails(module.params, checked(module.params))
    except ValueError as error:
        raise NodeError(str(error)) from None


if __name__ == "__main__":
    main()
