# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of `rdm.provision.plan`, an action that runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Plan the cluster, or refuse with every problem of every node
description:
  - Decides once for the whole cluster, on the controller, before anything changes anywhere. Run it once.
  - Stage V(inventory) checks groups, names and variables of all hosts of the groups C(master) and C(workers),
    and the list of images, and makes the address plan. It needs no connection, but see O(connections).
  - Stage V(nodes) goes on from that, in the same run, and compares the plan with what
    M(rdm.provision.node_facts) registered on the hosts of the play. Hosts without such facts (because of
    C(--limit), or because they were not reached) keep their addresses and are not checked.
  - The address plan is kept in C(address_plan.cfg) beside the inventory.
version_added: 0.1.0
extends_documentation_fragment: rdm.provision.attributes.changes
options:
  stage:
    description: What to decide from; V(inventory) alone, or the V(nodes) as well.
    type: str
    choices: [inventory, nodes]
    required: true
  facts:
    description: Name of the variable that M(rdm.provision.node_facts) was registered in; for stage V(nodes).
    type: str
    default: preflight_facts
  inspection:
    description:
      - Name of the variable that M(rdm.provision.image_archive) was registered in, with C(state=inspected)
        for each archive in a loop; for stage V(nodes).
    type: str
    default: images_inspection
  release:
    description:
      - Names of nodes that left the inventory for good. Their addresses may be given to others again.
      - A name that holds no reserved address is refused.
    type: list
    elements: str
    default: []
  write:
    description: Write the plan file when it differs.
    type: bool
    default: false
  keys:
    description:
      - Refuse if the fingerprints of the controller's ssh keys are not those in the plan file.
      - With O(write) keys that were never made are made, and their fingerprints kept in the plan file.
    type: bool
    default: false
  state_files:
    description: Return RV(state_files), too.
    type: bool
    default: false
    aliases: [receipts]
  connections:
    description:
      - The connection plugins by which nodes are queried when the inventory is refused, so that what is
        wrong with them comes in the same report; for stage V(inventory). With none no node is connected to.
      - For stage V(nodes), those by which the locks of runs that were killed are taken over, and its own are
        released when it refuses.
      - Nodes that do not answer plainly are left to the next run.
    type: list
    elements: str
    default: []
    aliases: [look]
  refuse:
    description: For stage V(nodes), whether to refuse; otherwise the plan has RV(problems).
    type: bool
    default: true
    version_added: 0.2.0
  timeout:
    description: Seconds that each node has for that. Who waits for it has an inventory to correct.
    type: float
    default: 10
    aliases: [patience]
"""

EXAMPLES = r"""
- name: Check the inventory and plan the addresses
  rdm.provision.plan:
    stage: inventory
  run_once: true

- name: Gather facts of the node
  rdm.provision.node_facts:
  register: preflight_facts

- name: Check the nodes and write the plan
  rdm.provision.plan:
    stage: nodes
    write: true
  register: preflight_plan
  run_once: true
"""

RETURN = r"""
cluster: {description: Name of the cluster., returned: success, type: str, sample: rdm}
subnet: {description: Subnet of the container network., returned: success, type: str, sample: 192.169.16.0/24}
prefixlen: {description: Its prefix length., returned: success, type: int, sample: 24}
gateway:
  description: Gateway of the container network; no node has this address.
  returned: success
  type: str
  sample: 192.169.16.1
rails:
  description: Subnets of the container networks of further rails.
  returned: where nodes have several rails
  type: list
  elements: str
  sample: [192.169.17.0/24]
master: {description: Name of the master., returned: success, type: str, sample: node1}
master_addr: {description: The master's MY_IP., returned: success, type: str, sample: 192.169.16.100}
nodes:
  description:
    - Every node of the inventory, the master first. The fields after C(vf_mac) are there if it has facts.
  returned: success
  type: dict
  contains:
    address: {description: "Where ssh goes, or the node's name when it is reached otherwise.", type: str}
    my_ip: {description: Its address on the container network., type: str}
    note:
      description:
        - How it came to that address, compared with the plan file as it was.
        - V(new), V(kept), V(moved), or V(pinned) by C(my_ip).
      type: str
    rank: {description: Its place in the hostfile; the master has 0., type: int}
    slots: {description: How many processes it runs., type: int}
    accelerator: {description: "V(rocm), V(cuda) or V(cpu).", type: str}
    image: {description: The image that the training container runs., type: str}
    vf_mac: {description: The first MAC of its VFs; empty where the cluster has none., type: str}
    config_dir: {description: The directory of the cluster's files., type: str}
    container: {description: What its container gets of the node's devices., type: dict}
    network_present: {description: Whether it has a network of the planned name., type: bool}
    network_differences: {description: "How that differs from the plan, in sentences.", type: list}
    shells: {description: Which shells are installed., type: dict}
    seen: {description: "Name, state and image of its container; empty for none.", type: dict}
    vfs_ending: {description: "VFs of containers that end first, by the PF's interface.", type: dict}
    rails: {description: "Its further rails, each with network, subnet and MY_IP.", type: list}
hostfile:
  description: DeepSpeed's hostfile, the master first.
  returned: success
  type: str
  sample: "192.169.16.100 slots=8\n192.169.16.101 slots=8\n"
address_map:
  description: One line C(name MY_IP) per node, the master first.
  returned: success
  type: str
  sample: "node1 192.169.16.100\nnode2 192.169.16.101\n"
dictionary:
  description: The former name of RV(address_map), for one release.
  returned: success
  type: str
  sample: "node1 192.169.16.100\nnode2 192.169.16.101\n"
removed:
  description: Nodes that left the inventory, and their addresses, which are reserved until they are released.
  returned: success
  type: dict
  sample: {node9: 192.169.16.102}
saved:
  description: Whether the plan file says the same as this plan, because it did before or was written now.
  returned: success
  type: bool
lock:
  description: Which run wants the locks of the nodes, for M(rdm.provision.node_facts); empty where none does.
  returned: with O(state_files)
  type: dict
state_files:
  description:
    - By node what M(rdm.provision.node_facts), M(rdm.provision.state_file) and M(rdm.provision.work) compare.
  returned: with O(state_files)
  type: dict
rdm_refused:
  description: The stage that refused, V(inventory) or V(nodes).
  returned: when the plan is refused
  type: str
problems:
  description:
    - Every problem of every node, as C(node) (null for the whole cluster), C(value), C(reason) and C(hint).
    - Without O(refuse), of what would refuse a change of the cluster.
  returned: without O(refuse), and when the plan is refused
  type: list
  elements: dict
"""
