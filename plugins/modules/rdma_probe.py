#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gather the RDMA devices of a node's container, and measure with its partners."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rdma_probe
short_description: Check the RDMA devices of a node's container, and measure with its partners
description:
  - With V(gather), says which RDMA devices the training container can use, which it was given, and which is
    that of MY_IP.
  - With V(start), starts a program in the container that goes through the rounds of O(part) by itself, and
    returns at once. In each round it runs perftest's C(ib_write_bw) and C(ib_write_lat) with one partner.
    The programs of the nodes find each other over the fabric, without ssh.
  - With V(collect), returns what that program has measured, as soon as it is done.
  - So all rounds of a cluster take two calls per node, and every node may be called when its turn comes.
  - What cannot be measured is not a failure of this module but a RV(reason). The action
    M(rdm.provision.rdma_pairs) makes the rounds and evaluates what they came to.
  - A program ends by itself when its time is up, with all that it has started; what a killed run has left
    is ended by the next V(start), which knows it by C(RDM_VERIFY_RUN) in its environment.
  - The image of the container needs C(python3) (3.7 or newer) and the package C(perftest).
version_added: 0.1.0
extends_documentation_fragment: rdm.provision.attributes.reads
attributes:
  check_mode:
    support: full
    description: It gathers in check mode too, and measures nothing.
options:
  stage:
    description: What to do.
    type: str
    choices: [gather, start, collect]
    required: true
  container:
    description: Name of the training container.
    type: str
    default: rdm
  cluster:
    description: Name of the cluster, to find jobs that run; for V(gather).
    type: str
    default: rdm
  node:
    description: Name of this node.
    type: str
    required: true
  address:
    description: MY_IP of this node; for V(gather).
    type: str
    default: ""
  rails:
    description: >-
      Name and subnet of each rail, where there are several; O(address) is on the first. For V(gather).
    type: dict
    default: {}
    version_added: 0.2.0
  rail:
    description: The name of the rail that is checked, or was measured; empty for the first.
    type: str
    default: ""
    version_added: 0.2.0
  part:
    description: This node's part of the rounds, as M(rdm.provision.rdma_pairs) returns it.
    type: dict
    default: {}
  wait:
    description: Seconds that V(collect) waits for the end of the rounds.
    type: float
    default: 0
  root:
    description: Where C(/sys) and C(/dev) are in the container. Tests have trees of their own.
    type: str
    default: /
"""

EXAMPLES = r"""
- name: Gather the RDMA devices
  rdm.provision.rdma_probe:
    stage: gather
    node: "{{ inventory_hostname }}"
    address: 192.169.16.101
  register: rdma_look
"""

RETURN = r"""
reason:
  description: Why there is nothing, in one sentence; empty otherwise.
  returned: always
  type: str
  sample: "its image has no ib_write_bw: add the package perftest to the image"
rail:
  description: The name of the rail that this is of, O(rail).
  returned: always
  type: str
  sample: ib1
found:
  description: What the container can use, and the RDMA device, port and GID index of MY_IP.
  returned: for V(gather), when it could be gathered
  type: dict
  sample: {device: mlx5_2, ib_port: 1, gid_index: 3, rate_gbit: 200.0, link_layer: Ethernet}
given:
  description: The character devices below /dev/infiniband that the container was given.
  returned: for V(gather), when it could be gathered
  type: list
  elements: str
  sample: [/dev/infiniband/uverbs2, /dev/infiniband/rdma_cm]
given_all:
  description: Whether it was given all there are, by a directory or as a privileged container.
  returned: for V(gather), when it could be gathered
  type: bool
done: {description: Whether the rounds have ended here., returned: for V(collect), type: bool}
progress: {description: In which round it is., returned: for V(collect), type: str, sample: round 3 of 7}
pairs:
  description: >-
    For each partner what this node sends and receives in Gb/s, and the latency in microseconds; null where it
    was not measured.
  returned: for V(collect)
  type: dict
  sample: {n2: [181.2, 180.9, 2.1]}
errors:
  description: Why a partner was not measured.
  returned: for V(collect)
  type: dict
  sample: {n3: n3 does not answer}
"""

from typing import Any, Dict, List, Tuple
from urllib.parse import quote

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.docker import container_program
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.docker.container_program import NotMeasuredError
from ansible_collections.rdm.provision.plugins.module_utils.fabric import (
    rdma_devices_script,
    rdma_pairs_script,
)
from ansible_collections.rdm.provision.plugins.module_utils.jobs.execution_environment import find_running
from ansible_collections.rdm.provision.plugins.module_utils.network.rails import on_rail

ARGUMENT_SPEC: Dict[str, Any] = {
    "stage": {"type": "str", "choices": ["gather", "start", "collect"], "required": True},
    "container": {"type": "str", "default": "rdm"},
    "cluster": {"type": "str", "default": "rdm"},
    "node": {"type": "str", "required": True},
    "address": {"type": "str", "default": ""},
    "rails": {"type": "dict", "default": {}},
    "rail": {"type": "str", "default": ""},
    "part": {"type": "dict", "default": {}},
    "wait": {"type": "float", "default": 0},
    "root": {"type": "str", "default": "/"},
}

DEVICES = "/dev/infiniband"
_GATHER_S = 20.0


def given(container: Dict[str, Any]) -> Tuple[List[str], bool]:
    """Return the RDMA character devices that a container was given, and whether it has all of the node's.

    Args:
        container: the engine's description.
    """
    host = container.get("HostConfig") or {}
    paths = [str(device.get("PathInContainer") or "") for device in host.get("Devices") or []]
    paths += [str(mount.get("Destination") or "") for mount in container.get("Mounts") or []]
    paths = [path.rstrip("/") for path in paths]
    everything = bool(host.get("Privileged")) or any(path in ("/dev", DEVICES) for path in paths)
    return sorted({path for path in paths if path.startswith(DEVICES + "/")}), everything


def gather(docker: DockerAPI, options: Dict[str, Any]) -> Dict[str, Any]:
    """Return the RDMA devices that the container can use, and those that it was given.

    Raises:
        NotMeasuredError: with the reason, such as an unknown rail, or no address on it.
        DockerProblem: the engine failed.
    """
    container = options["container"]
    container_program.running(docker, container)
    path = "/containers/{0}/json".format(quote(container, safe=""))
    names, everything = given(docker.get(path))
    try:
        address = on_rail(options["address"], options["rails"], options["rail"])
    except ValueError as error:
        raise NotMeasuredError(str(error), "running") from None
    arguments = [address, options["root"], str(len(options["rails"]) or 1)]
    seen = container_program.run(docker, container, rdma_devices_script.__name__, arguments, _GATHER_S)
    reason = seen.pop("problem")
    jobs = find_running({"runtime": "container"}, options["cluster"], options["node"])
    if jobs and not reason:
        reason = "the job {0} runs: stop it first, or wait for its end".format(jobs[0])
    return {"reason": reason, "found": seen, "given": names, "given_all": everything}


def start(docker: DockerAPI, options: Dict[str, Any]) -> Dict[str, Any]:
    """Start this node's part of the rounds.

    Raises:
        NotMeasuredError: with the reason.
    """
    part = options["part"]
    mark = {rdma_pairs_script.MARK: str(part["run"])}
    container_program.start(
        docker, options["container"], rdma_pairs_script.__name__, container_program.pieces(part), mark
    )
    return {"reason": ""}


def collect(docker: DockerAPI, options: Dict[str, Any]) -> Dict[str, Any]:
    """Return the results of this node's part.

    Raises:
        NotMeasuredError: with the reason.
    """
    part = container_program.pieces(dict(options["part"], rounds=[], collect=options["wait"]))
    timeout = rdma_pairs_script.APPEARS + rdma_pairs_script.GREETING
    seconds = options["wait"] + timeout + _GATHER_S
    found = container_program.run(docker, options["container"], rdma_pairs_script.__name__, part, seconds)
    if "problem" in found:
        raise NotMeasuredError(str(found["problem"]), "running")
    words = "round {0} of {1}".format(max(found["round"], 1), found["of"])
    return {"reason": "", "progress": words, **{key: found[key] for key in ("done", "pairs", "errors")}}


_STAGES = {"gather": gather, "start": start, "collect": collect}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Return what the stage found, or why there is nothing."""
    options = module.params
    result = {"reason": "nothing is measured in check mode", "done": True}
    if options["stage"] == "gather" or not module.check_mode:
        try:
            result = _STAGES[options["stage"]](DockerAPI(), options)
        except NodeError as error:
            result = {"reason": str(error), "done": True}
    return {**result, "rail": options["rail"]}


if __name__ == "__main__":
    main()
