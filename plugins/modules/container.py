#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""rdm.provision.container: the training container runs as it should, and nothing of worth ends for that."""

from __future__ import annotations

DOCUMENTATION = r"""
module: container
short_description: Run the training container, and give up the one before only for one that works
description:
  - Makes sure that the cluster's training container runs as the options say, and is ready.
  - One that is to be another one is only removed when its successor, which the engine has accepted before the
    old one was stopped, is ready. Whatever fails, the old one runs again. What a run that was killed on the
    way has left is cleared away by the next one.
  - Looks for training jobs right before it would end them, and refuses.
  - Finds what others have changed since, such as limits and the restart policy (C(docker update)), further
    networks, and a tag that has moved to another image. In check mode it says the same without doing it.
  - Before that it writes the files that the container reads, as M(rdm.provision.node_files) does, and where a
    directory was made for them, starts a running container again, since a mount is of the one that was there.
    Nothing is written where it refuses for a job. With O(state_file) it ends by keeping one.
  - With O(lock), the lock of the cluster is renewed before anything is changed, and released when
    O(state_file) is kept.
author:
  - The rdm-provision developers
extends_documentation_fragment:
  - rdm.provision.files
  - rdm.provision.lock
attributes:
  check_mode:
    support: full
    description: Says what would be done, and which jobs would end.
  diff_mode:
    support: full
    description: Shows the lines of files and the settings that differ, values of the environment among them.
  idempotent:
    support: full
    description: A second run changes nothing.
options:
  name:
    description: The container's name.
    type: str
    required: true
  cluster:
    description: The cluster's name, the value of the label V(rdm.provision.cluster).
    type: str
    required: true
  node:
    description: Name of this node in the inventory, under which its jobs run.
    type: str
    default: ""
  image:
    description: The image; it has to be there.
    type: str
    required: true
  command:
    description: What it runs.
    type: list
    elements: str
    required: true
  hostname:
    description: Host name in it.
    type: str
    required: true
  network:
    description: The network that it is on; with O(rails), the first one.
    type: str
    required: true
  my_ip:
    description: Its address there.
    type: str
    required: true
  rails:
    description: The further networks that it is on, and its address on each.
    type: dict
    default: {}
  plugin_socket:
    description:
      - Socket of the network plugin rdm-sriov, where its networks are of that driver. A function is then
        reserved for the container before it is made; it gets the function's hardware address, unless that
        is another after each boot, and the function's RDMA devices.
      - Empty where another driver makes the networks.
    type: str
    default: ""
  rdma:
    description: With O(plugin_socket), whether it gets the RDMA devices of its functions.
    type: bool
    default: true
  env:
    description: Environment variables.
    type: dict
    default: {}
  volumes:
    description: Mounts, C(path on the node:path in the container[:ro]).
    type: list
    elements: str
    default: []
  devices:
    description: Devices, C(path on the node[:path in the container[:rwm]]).
    type: list
    elements: str
    default: []
  device_requests:
    description:
      - Requests to device drivers, as M(community.docker.docker_container) takes them (C(driver), C(count),
        C(device_ids), C(capabilities), C(options)).
    type: list
    elements: dict
    default: []
  groups:
    description: Further groups of its processes.
    type: list
    elements: str
    default: []
  ulimits:
    description: Limits, C(name:soft:hard).
    type: list
    elements: str
    default: []
  capabilities:
    description: Capabilities to add.
    type: list
    elements: str
    default: []
  security_opts:
    description: Security options.
    type: list
    elements: str
    default: []
  ipc_mode:
    description: Whose shared memory it has.
    type: str
    default: private
  userns_mode:
    description: V(host) leaves it out of the engine's user namespaces; empty means the engine's choice.
    type: str
    default: ""
  shm_size:
    description: Size of its own shared memory, such as V(64G); empty means the engine's default.
    type: str
    default: ""
  restart_policy:
    description: When the engine starts it again.
    type: str
    choices: ["no", on-failure, always, unless-stopped]
    default: always
  stop_timeout:
    description: Seconds that it gets to end by itself.
    type: int
    default: 10
  reads:
    description: Digest of what it reads only when it starts, so that another one is another container.
    type: str
    default: ""
  recreate:
    description: Whether it has to be made anew in any case.
    type: bool
    default: false
  image_comes:
    description:
      - In check mode, the ID of the image that O(image) would stand for by now if the tasks before had done
        their work; empty means the one that it stands for.
    type: str
    default: ""
  protect_jobs:
    description: Whether to refuse what would end a training job that runs in it.
    type: bool
    default: true
  ready_line:
    description: Text of the line that it writes when it is ready; empty means that running is enough.
    type: str
    default: ""
  ready_timeout:
    description: Seconds to wait for that.
    type: int
    default: 30
  claims:
    description: Claims on the directories of the files, each as O(rdm.provision.node_files#module:claim).
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path of the file; C(~) is the user that the module runs as.
        type: str
        required: true
      name:
        description: Who claims the directory.
        type: str
        required: true
  state_file:
    description: The state file to keep when all is done; none unless given, and none in check mode.
    type: dict
    suboptions:
      directory:
        description: As O(rdm.provision.state_file#module:directory).
        type: str
        required: true
      worked:
        description: As O(rdm.provision.state_file#module:worked).
        type: list
        elements: str
        required: true
      inputs:
        description: As O(rdm.provision.state_file#module:inputs).
        type: dict
        required: true
      watch:
        description: As O(rdm.provision.state_file#module:watch).
        type: dict
        required: true
      hardware:
        description: As O(rdm.provision.state_file#module:hardware).
        type: str
        required: true
"""

EXAMPLES = r"""
- name: Run the training container
  rdm.provision.container:
    name: rdm
    cluster: rdm
    node: "{{ inventory_hostname }}"
    image: registry.example.com/training:2026.11
    command: [sleep, infinity]
    hostname: "{{ inventory_hostname }}"
    network: ibnet
    my_ip: 192.169.16.100
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode.
  returned: success
  type: list
  elements: str
  sample: [replace]
running:
  description: The training jobs that it would end, in check mode.
  returned: success
  type: list
  elements: str
paths:
  description: The files and directories that were changed, or would be.
  returned: success
  type: list
  elements: str
  sample: [/etc/rdm/ssh/config]
container:
  description: The container's C(name), C(state) and C(image).
  returned: success
  type: dict
  sample: {name: rdm, state: running, image: "training:1"}
"""

from typing import Any, Dict, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.file_arguments import (
    FILE_ARGUMENTS,
    OWNER_MARKER,
)
from ansible_collections.rdm.provision.plugins.module_utils.base.file_diff import (
    difference as file_difference,
)
from ansible_collections.rdm.provision.plugins.module_utils.base.file_plan import (
    Plan,
    Problem,
    with_owner_marker,
)
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import echo
from ansible_collections.rdm.provision.plugins.module_utils.container import etc_hosts
from ansible_collections.rdm.provision.plugins.module_utils.container.readiness import NotReady
from ansible_collections.rdm.provision.plugins.module_utils.container.request import ends, settings_of
from ansible_collections.rdm.provision.plugins.module_utils.container.swap import (
    ENDS,
    Change,
    PreconditionFailed,
    jobs_in,
    leftovers_of,
    steps,
)
from ansible_collections.rdm.provision.plugins.module_utils.container.vfs import Functions
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerProblem
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import inspect
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import PluginProblem
from ansible_collections.rdm.provision.plugins.module_utils.hardware.rdma import RdmaProblem
from ansible_collections.rdm.provision.plugins.module_utils.state import node_lock, state_file
from ansible_collections.rdm.provision.plugins.module_utils.state.former_directory import (
    directory_of,
    removal,
)


def _strings() -> Dict[str, Any]:
    return {"type": "list", "elements": "str", "default": []}


ARGUMENT_SPEC: Dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "cluster": {"type": "str", "required": True},
    "node": {"type": "str", "default": ""},
    "image": {"type": "str", "required": True},
    "command": {"type": "list", "elements": "str", "required": True},
    "hostname": {"type": "str", "required": True},
    "network": {"type": "str", "required": True},
    "my_ip": {"type": "str", "required": True},
    "rails": {"type": "dict", "default": {}},
    "plugin_socket": {"type": "str", "default": ""},
    "rdma": {"type": "bool", "default": True},
    "env": {"type": "dict", "default": {}},
    "volumes": _strings(),
    "devices": _strings(),
    "device_requests": {"type": "list", "elements": "dict", "default": []},
    "groups": _strings(),
    "ulimits": _strings(),
    "capabilities": _strings(),
    "security_opts": _strings(),
    "ipc_mode": {"type": "str", "default": "private"},
    "userns_mode": {"type": "str", "default": ""},
    "shm_size": {"type": "str", "default": ""},
    "restart_policy": {
        "type": "str",
        "choices": ["no", "on-failure", "always", "unless-stopped"],
        "default": "always",
    },
    "stop_timeout": {"type": "int", "default": 10},
    "reads": {"type": "str", "default": ""},
    "recreate": {"type": "bool", "default": False},
    "image_comes": {"type": "str", "default": ""},
    "protect_jobs": {"type": "bool", "default": True},
    "ready_line": {"type": "str", "default": ""},
    "ready_timeout": {"type": "int", "default": 30},
    **FILE_ARGUMENTS,
    "claims": {**OWNER_MARKER, "type": "list", "elements": "dict", "default": []},
    "lock": {"type": "dict", "options": node_lock.ARGUMENTS},
    "state_file": {"type": "dict", "options": state_file.ARGUMENTS},
}

_STARTS = {"make", "replace", "start", "restart"}
"""The steps by which the container starts."""
_PATIENCE = 60.0
"""Seconds that the engine may be silent, beside those that a container takes to end."""


def run(module: AnsibleModule) -> Dict[str, Any]:
    """Look, and do what is to be done.

    Raises:
        DockerProblem, NotReady, PluginProblem, Problem, RdmaProblem, Refused: it is not as it should be; the
            text says why.
        OSError: a file cannot be written.
    """
    wanted = dict(module.params, env={name: str(value) for name, value in module.params["env"].items()})
    check, name = module.check_mode, wanted["name"]
    if wanted["lock"] and not check:
        _renew(wanted["lock"])
    files = Plan(with_owner_marker(wanted, wanted["claims"]))
    paths = files.changes()
    api = DockerAPI(timeout=_PATIENCE + wanted["stop_timeout"])
    found, gone = leftovers_of(api, name, wanted["cluster"], check)
    functions = Functions(api, wanted["plugin_socket"], ends(wanted), wanted["rdma"])
    before = settings_of(found) if found else {}
    wanted["functions"] = functions.settings(found, before.get("functions") or {}, check)
    image = wanted["image_comes"] if check else ""
    # A mount is of the directory that was there when the container started.
    restart = bool(files.made) or functions.incomplete
    todo = steps(api, wanted, found, restart, wanted["recreate"], image)
    named, names = _names(wanted, found if not _STARTS.intersection(todo.todo) else None)
    actions = ["remove {0}".format(one) for one in gone] + todo.todo
    actions += ["name nodes"] * (None not in (named, names) and named != names)
    running = jobs_in(found, wanted["node"]) if set(ENDS).intersection(todo.todo) else []
    result: Dict[str, Any] = {"changed": bool(actions or paths), "actions": actions, "running": running}
    result["paths"] = paths
    if module._diff:
        before = {"exists": found is not None, "running": bool(found and _runs(found))}
        difference = {
            "before": dict(before, **(todo.differs.before if todo.differs else {})),
            "after": dict({"exists": True, "running": True}, **(todo.differs.after if todo.differs else {})),
        }
        parts = files.diff()
        if "name nodes" in actions:
            parts.append(file_difference("/etc/hosts in the container", named or "", names or ""))
        result["diff"] = [*parts, difference] if parts else difference
    if not check:
        change = Change(api, wanted, found, functions)
        change.protect_jobs(todo)
        files.apply(module)
        change.make(todo)
        if names and named != names:
            etc_hosts.write(api, name)
        if wanted["state_file"]:
            state_file.keep(wanted["state_file"], api)
            if wanted["lock"]:
                node_lock.release(wanted["lock"])
    now = inspect(api, "containers", name) if not check else found
    if found and now and directory_of(found) != directory_of(now):
        former = removal(directory_of(found), wanted["cluster"])
        if former:
            result["paths"] = [*paths, *former.changes()]
            former.apply(module)
    state = now["State"]["Status"] if now else "created"
    return dict(result, container={"name": name, "state": state, "image": wanted["image"]})


def _names(wanted: Dict[str, Any], running: Optional[Dict[str, Any]]) -> Tuple[Optional[str], Optional[str]]:
    """Return the names of nodes that a container has, and those that it shall have.

    None for the first where only root could tell. Both are None where it does not go on as it is, since a
    container gets them when it starts.
    """
    clients = [item["ssh_client_config"] for item in wanted["files"] if item["ssh_client_config"]]
    if running is None or not clients:
        return None, None
    return etc_hosts.found(running), etc_hosts.block(clients[0]["dictionary"])


def _renew(lock: Dict[str, Any]) -> None:
    """Renew the lock of the run; Refused where another one has it by now."""
    try:
        holder = node_lock.take(lock)
    except OSError:
        return  # which the look has told
    if holder:
        leader = holder["leader"]
        raise PreconditionFailed(
            "{what} (process {pid} of {user} on {host}) has begun to change this node, and this run leaves "
            "it as it is: run it again when that one has ended".format(**leader)
        )


def _runs(found: Dict[str, Any]) -> bool:
    return bool(found["State"]["Running"] and not found["State"]["Paused"])


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        result = run(module)
    except (DockerProblem, NotReady, PluginProblem, Problem, RdmaProblem, PreconditionFailed) as problem:
        module.fail_json(msg=str(problem), **echo(module))
    except OSError as error:
        where = error.filename or "cannot write"
        module.fail_json(msg="{0}: {1}".format(where, error.strerror or error), **echo(module))
    module.exit_json(**{**result, **echo(module)})


if __name__ == "__main__":
    main()
