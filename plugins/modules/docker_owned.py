#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove what a cluster has created in a node's Docker Engine, and nothing else."""

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_owned
short_description: Remove the containers or networks that carry a cluster's labels
description:
  - Removes what the cluster has made on the node, whatever its name; what lacks its labels is not touched.
  - A network that a foreign container is on is refused, and so is the plugin while a network needs it, since
    removing either would break somebody else's work.
  - A network plugin of the cluster that has stopped is started for the removal, as the engine needs it, and
    waits for minutes for one that does not answer.
  - A node that has no Docker Engine at all has nothing to remove.
extends_documentation_fragment: rdm.provision.attributes.changes
options:
  cluster:
    description: The cluster's name, the value of the label V(rdm.provision.cluster).
    type: str
    required: true
  role:
    description: What is removed, the value of the label V(rdm.provision.role).
    type: str
    choices: [container, network, plugin]
    required: true
  name:
    description: Only the network of this name; empty means all of the cluster's.
    type: str
    default: ""
  disconnect:
    description:
      - With O(role=network), stop the cluster's own containers that are on it and take them off it first.
        They stay, since nobody knows yet whether the engine takes the ones that are to follow them.
    type: bool
    default: false
  driver:
    description: With O(role=plugin), the network driver that the plugin serves. Empty skips that.
    type: str
    default: ""
  socket:
    description:
      - The unix socket at which a plugin of the cluster answers that is started for the removal.
      - Empty means the one of the driver's name in C(/run/docker/plugins).
    type: str
    default: ""
  config_dir:
    description:
      - With O(role=container), where the cluster's files are on the node. Where a container has read others,
        as before the host name in this path changed, these go with it.
      - Empty means to leave them.
    type: str
    default: ""
  stop_timeout:
    description: Seconds that a container gets to end by itself.
    type: int
    default: 10
"""

EXAMPLES = r"""
- name: Remove the cluster's containers
  rdm.provision.docker_owned:
    cluster: rdm
    role: container

- name: Remove the plugin, if no network needs it
  rdm.provision.docker_owned:
    cluster: rdm
    role: plugin
    driver: sriov
"""

RETURN = r"""
removed:
  description: The names of what was removed, and the paths of files.
  returned: always
  type: list
  elements: str
  sample: [rdm]
"""

import contextlib
import os
import time
from typing import Any, Callable, Dict, List, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.local_path import local_path
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import (
    DockerAPI,
    DockerError,
    DockerUnavailable,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import (
    container_names,
    is_ours,
    label_filter,
    no_engine_here,
    plugin_answers,
    refuse_while_needed,
    remove_container,
)
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin import installation
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin.unit import NAME
from ansible_collections.rdm.provision.plugins.module_utils.state.former_directory import (
    directory_of,
    removal,
)

ARGUMENT_SPEC: Dict[str, Any] = {
    "cluster": {"type": "str", "required": True},
    "role": {"type": "str", "choices": ["container", "network", "plugin"], "required": True},
    "name": {"type": "str", "default": ""},
    "disconnect": {"type": "bool", "default": False},
    "driver": {"type": "str", "default": ""},
    "socket": {"type": "str", "default": ""},
    "config_dir": {"type": "str", "default": ""},
    "stop_timeout": {"type": "int", "default": 10},
}

_WAKE_TIMEOUT = 10.0  # seconds
_POLL = 0.1  # seconds
_TIMEOUT = 60.0  # seconds


def remove_containers(api: DockerAPI, params: Dict[str, Any], check: bool) -> List[str]:
    """Remove the cluster's containers of the role; return their names, and what was removed with them."""
    filters = {"label": label_filter(params["cluster"], params["role"])}
    found = api.get("/containers/json", all=True, filters=filters)
    if found and params["driver"]:
        refuse_while_needed(
            api, params["driver"], params["cluster"], "container " + container_names(found)[0], check
        )
    if not check:
        _end(api, found, params["stop_timeout"])
    return container_names(found) + _former_files(found, params, check)


def _former_files(containers: List[Dict[str, Any]], params: Dict[str, Any], check: bool) -> List[str]:
    """Remove the cluster's files from former directories that containers mount; return the paths."""
    now = os.path.realpath(local_path(params["config_dir"]))
    paths: List[str] = []
    for directory in sorted({directory_of(one) for one in containers}) if params["config_dir"] else ():
        plan = removal(directory, params["cluster"]) if os.path.realpath(directory) != now else None
        if plan:
            paths += plan.changes()
            if not check:
                plan.apply(None)
    return paths


def remove_networks(api: DockerAPI, params: Dict[str, Any], check: bool) -> List[str]:
    """Remove the cluster's networks; return their names."""
    found = api.get("/networks", filters={"label": label_filter(params["cluster"], "network")})
    found = [network for network in found if params["name"] in ("", network["Name"])]
    ours: List[Tuple[Dict[str, Any], Dict[str, Any]]] = []
    for network in found:
        users = api.get("/containers/json", all=True, filters={"network": [network["Id"]]})
        allowed = [user for user in users if is_ours(user.get("Labels"), params["cluster"], "container")]
        foreign = [user for user in users if user not in allowed]
        # Without disconnect, our containers were removed before, except in check mode.
        if not params["disconnect"] and not check and not foreign:
            foreign = allowed
        if foreign:
            raise NodeError(
                "network {0} stays: {1} on it: {2}; remove or disconnect them first".format(
                    network["Name"],
                    "foreign containers are" if foreign != allowed else "the cluster's containers are",
                    ", ".join(container_names(foreign)),
                )
            )
        ours += [(network, container) for container in allowed]
    if not check:
        for network, container in ours:
            _gone(api.post, "/containers/{0}/stop".format(container["Id"]), t=params["stop_timeout"])
            end = {"Container": container["Id"], "Force": True}
            api.post("/networks/{0}/disconnect".format(network["Id"]), end)
        for network in found:
            _gone(api.delete, "/networks/{0}".format(network["Id"]))
    return sorted(network["Name"] for network in found)


def wake_plugin(api: DockerAPI, cluster: str, socket: str = "") -> None:
    """Start the cluster's network plugin if it has stopped, and wait a short time until it answers."""
    unit = installation.facts()
    if unit["unit"] and unit["cluster"] == cluster and not unit["running"]:
        with contextlib.suppress(NodeError):
            installation.control("restart", NAME)
    plugins = api.get("/containers/json", all=True, filters={"label": label_filter(cluster, "plugin")})
    stopped = [plugin for plugin in plugins if plugin.get("State") != "running"]
    if not stopped:
        return
    networks = api.get("/networks", filters={"label": label_filter(cluster, "network")})
    sockets = {socket or "/run/docker/plugins/{0}.sock".format(network["Driver"]) for network in networks}
    for plugin in stopped:
        try:
            api.post("/containers/{0}/start".format(plugin["Id"]))
        except DockerError:
            return  # the removal works without it, but takes the engine's timeout
    deadline = time.monotonic() + _WAKE_TIMEOUT
    while any(plugin_answers(one) for one in sockets) and time.monotonic() < deadline:
        time.sleep(_POLL)


def _end(api: DockerAPI, containers: List[Dict[str, Any]], stop_timeout: int) -> None:
    """Stop and remove containers."""
    for container in containers:
        _gone(api.post, "/containers/{0}/stop".format(container["Id"]), t=stop_timeout)
        # v: with anonymous volumes of the image, which nobody else uses.
        _gone(remove_container, api, container["Id"], volumes=True)


def _gone(request: Callable[..., object], *arguments: Any, **query: Any) -> None:
    """Make a request that also succeeds if its object is gone already."""
    try:
        request(*arguments, **query)
    except DockerError as error:
        # 304: stopped already; 404: gone; 409: its removal is under way.
        if error.status not in (304, 404) and "already in progress" not in error.message:
            raise


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Remove what is the cluster's, and return the module's result."""
    remove = remove_networks if module.params["role"] == "network" else remove_containers
    removed: List[str] = []
    # The engine is silent while it waits for a container to stop.
    api = DockerAPI(timeout=_TIMEOUT + module.params["stop_timeout"])
    try:
        if not module.check_mode and module.params["role"] != "plugin":
            wake_plugin(api, module.params["cluster"], module.params["socket"])
        removed = remove(api, module.params, module.check_mode)
    except DockerUnavailable:
        if not no_engine_here(api):
            raise
    result: Dict[str, Any] = {"changed": bool(removed), "removed": removed}
    if module._diff:
        result["diff"] = {"before": "".join(name + "\n" for name in removed), "after": ""}
    return result


if __name__ == "__main__":
    main()
