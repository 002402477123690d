#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""rdm.provision.container: the training container runs with the desired settings, and no job ends for it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: container
short_description: Run the training container, and give up the one before only for one that works
description:
  - Makes sure that the cluster's training container runs as the options say, and is ready.
  - To replace a container, it creates the new one, stops the old one, and removes that only when the new one
    is ready. Whatever fails, the old one runs again. What a killed run has left, the next one removes.
  - Searches for training jobs right before it would end them, and refuses.
  - Finds what others have changed since, such as limits and the restart policy (C(docker update)), further
    networks, and a tag that has moved to another image. In check mode it says the same without doing it.
  - Before that it writes the files that the container reads, as M(rdm.provision.node_files) does, and where a
    directory was made for them, starts a running container again, since a mount is of the one that was there.
    Nothing is written where it refuses for a job. With O(state_file) it ends by keeping one.
  - With O(lock), the lock of the cluster is renewed before anything is changed, and released when
    O(state_file) is kept.
extends_documentation_fragment:
  - rdm.provision.attributes.changes
  - rdm.provision.files
  - rdm.provision.lock
attributes:
  check_mode:
    support: full
    description: Says what would be done, and which jobs would end.
  diff_mode:
    support: full
    description: Shows the lines of files and the settings that differ, values of the environment among them.
options:
  desired:
    description:
      - What the container should be, as P(rdm.provision.desired#lookup) returns it for the role container,
        in C(settings). Its keys are the attributes of C(DesiredContainer) in
        C(plugins/plugin_utils/desired/container.py).
      - With C(plugin_socket) a VF is reserved for the container before it is made. It gets the VF's hardware
        address, unless that is another after each boot, and with C(rdma) the VF's RDMA devices.
    type: dict
    required: true
  node:
    description: Name of this node in the inventory, under which its jobs run.
    type: str
    default: ""
  recreate:
    description: Whether it has to be recreated in any case.
    type: bool
    default: false
  image_comes:
    description:
      - In check mode, the ID of the image that its name would stand for by now if the tasks before had done
        their work; empty means the one that it stands for.
    type: str
    default: ""
  protect_jobs:
    description: Whether to refuse what would end a training job that runs in it.
    type: bool
    default: true
  ready_timeout:
    description: Seconds to wait until it is ready.
    type: int
    default: 30
  owner_markers:
    aliases: [claims]
    description: Owner markers of the directories, each as O(rdm.provision.node_files#module:owner_marker).
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path of the file; C(~) is the user that the module runs as.
        type: str
        required: true
      name:
        description: The cluster that owns the directory.
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
    desired: "{{ __container_desired.settings }}"
    node: "{{ inventory_hostname }}"
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
from ansible_collections.rdm.provision.plugins.module_utils.base.file_plan import Plan, with_owner_marker
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.container import etc_hosts
from ansible_collections.rdm.provision.plugins.module_utils.container.request import NEEDED, ends, settings_of
from ansible_collections.rdm.provision.plugins.module_utils.container.swap import (
    ENDS,
    Change,
    jobs_in,
    leftovers_of,
    steps,
)
from ansible_collections.rdm.provision.plugins.module_utils.container.vfs import ContainerVfs
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import inspect
from ansible_collections.rdm.provision.plugins.module_utils.state import node_lock, state_file
from ansible_collections.rdm.provision.plugins.module_utils.state.former_directory import (
    directory_of,
    removal,
)

ARGUMENT_SPEC: Dict[str, Any] = {
    "desired": {"type": "dict", "required": True},
    "node": {"type": "str", "default": ""},
    "recreate": {"type": "bool", "default": False},
    "image_comes": {"type": "str", "default": ""},
    "protect_jobs": {"type": "bool", "default": True},
    "ready_timeout": {"type": "int", "default": 30},
    **FILE_ARGUMENTS,
    "owner_markers": {
        **OWNER_MARKER,
        "aliases": ["claims"],
        "deprecated_aliases": [{"name": "claims", "version": "0.7.0", "collection_name": "rdm.provision"}],
        "type": "list",
        "elements": "dict",
        "default": [],
    },
    "lock": {"type": "dict", "options": node_lock.ARGUMENTS},
    "state_file": {"type": "dict", "options": state_file.ARGUMENTS},
}

_STARTS = {"make", "replace", "start", "restart"}
"""The steps that start the container."""
_TIMEOUT = 60.0
"""Seconds that the engine may be silent, besides the container's stop timeout."""


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Bring the container into its desired state.

    Raises:
        NodeError: it failed; the text says why.
        OSError: a file cannot be written.
    """
    wanted = dict(module.params["desired"], **module.params)
    lacking = sorted(name for name in NEEDED if name not in wanted)
    if lacking:
        raise NodeError("desired lacks {0}: give all that the lookup returns".format(", ".join(lacking)))
    check, name = module.check_mode, wanted["name"]
    if wanted["lock"] and not check:
        _renew(wanted["lock"])
    files = Plan(with_owner_marker(wanted, wanted["owner_markers"]))
    paths = files.changes()
    api = DockerAPI(timeout=_TIMEOUT + wanted["stop_timeout"])
    found, gone = leftovers_of(api, name, wanted["cluster"], check)
    vfs = ContainerVfs(api, wanted["plugin_socket"], ends(wanted), wanted["rdma"])
    before = settings_of(found) if found else {}
    wanted["vfs"] = vfs.settings(found, before.get("vfs") or {}, check)
    image = wanted["image_comes"] if check else ""
    # A running container still mounts a directory that was replaced.
    restart = bool(files.made) or vfs.incomplete
    todo = steps(api, wanted, found, restart, wanted["recreate"], image)
    named, names = _names(wanted, found if not _STARTS.intersection(todo.todo) else None)
    actions = ["remove {0}".format(one) for one in gone] + todo.todo
    actions += ["name nodes"] * (None not in (named, names) and named != names)
    running = jobs_in(found, wanted["node"]) if set(ENDS).intersection(todo.todo) else []
    result: Dict[str, Any] = {"changed": bool(actions or paths), "actions": actions, "running": running}
    result["paths"] = paths
    if module._diff:
        runs = bool(found and found["State"]["Running"] and not found["State"]["Paused"])
        before = {"exists": found is not None, "running": runs}
        difference = {
            "before": dict(before, **(todo.differs.before if todo.differs else {})),
            "after": dict({"exists": True, "running": True}, **(todo.differs.after if todo.differs else {})),
        }
        parts = files.diff()
        if "name nodes" in actions:
            parts.append(file_difference("/etc/hosts in the container", named or "", names or ""))
        result["diff"] = [*parts, difference] if parts else difference
    if not check:
        change = Change(api, wanted, found, vfs)
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
    """Return the names of nodes in a container, and the desired ones.

    The first is None if only root may read it. Both are None if the container starts in this call, since it
    gets the names then.
    """
    clients = [item["ssh_client_config"] for item in wanted["files"] if item["ssh_client_config"]]
    if running is None or not clients:
        return None, None
    return etc_hosts.found(running), etc_hosts.block(clients[0]["address_map"])


def _renew(lock: Dict[str, Any]) -> None:
    """Renew the run's lock; raise NodeError if another run has taken it."""
    try:
        holder = node_lock.take(lock)
    except OSError:
        return  # node_facts has reported it
    if holder:
        leader = holder["leader"]
        raise NodeError(
            "{what} (process {pid} of {user} on {host}) has begun to change this node, and this run leaves "
            "it as it is: run it again when that one has ended".format(**leader)
        )


if __name__ == "__main__":
    main()
