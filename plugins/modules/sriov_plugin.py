#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install the network plugin rdm-sriov on a node, or remove it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sriov_plugin
short_description: Install the network plugin rdm-sriov on a node, or remove it
description:
  - Writes the plugin's program, one file that any Python 3.8 runs, and, where systemd runs, a unit that
    starts it before the Docker Engine. Containers which start with the node then get their virtual functions.
  - The plugin is restarted only when the program that runs is not the one that is wanted, or its unit has
    changed. It knows its networks and who has which function over a restart, and containers keep theirs.
  - It gets the networks that the engine has and it lacks, since its state is lost.
  - Where systemd does not run, only the program is written, for a container to run it.
  - Refuses a unit of that name that is not the cluster's, and a socket that something else serves.
extends_documentation_fragment: rdm.provision.attributes.changes
attributes:
  diff_mode:
    support: full
    description: Shows the unit, and the digest of the program.
options:
  state:
    description:
      - V(present) installs and starts it. V(absent) takes away the unit, the program and what the plugin has
        kept, and is refused while a network needs it.
    type: str
    choices: [present, absent]
    default: present
  cluster:
    description: The cluster's name. Another cluster's plugin is neither changed nor removed.
    type: str
    required: true
  run_as:
    description: Who starts the plugin; V(auto) means V(unit) where systemd runs.
    type: str
    choices: [auto, unit, container]
    default: auto
  socket:
    description: The unix socket at which Docker finds the plugin. Its name gives the driver its name.
    type: path
    default: /run/docker/plugins/sriov.sock
  engine:
    description: Path or C(unix://) address of the Docker Engine's socket; empty means the usual one.
    type: str
    default: ""
  program:
    description: Where the program goes.
    type: path
    default: /usr/local/lib/rdm/rdm-sriov
  unit:
    description: Where the unit goes; its name is always C(rdm-sriov.service).
    type: path
    default: /etc/systemd/system/rdm-sriov.service
  state_directory:
    description: Where the plugin keeps what survives it.
    type: path
    default: /var/lib/rdm-sriov
  timeout:
    description: Seconds to wait until the plugin answers.
    type: int
    default: 30
  packed:
    description: The program, packed from C(rdm_sriov/) of the collection. Set by the action plugin.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Install the plugin
  rdm.provision.sriov_plugin:
    cluster: rdm

- name: Remove the plugin
  rdm.provision.sriov_plugin:
    cluster: rdm
    state: absent
"""

RETURN = r"""
run_as:
  description: Who starts the plugin, V(unit) or V(container).
  returned: success
  type: str
  sample: unit
digest:
  description: Digest of the program; empty if it should be absent.
  returned: success
  type: str
  sample: sha256:0f343b0931126a20
restarted: {description: "Whether the plugin was started, or would be.", returned: success, type: bool}
taught:
  description: Names of the networks that the plugin got again, or would get.
  returned: success
  type: list
  elements: str
  sample: [ibnet]
removed:
  description: The files that went, or would.
  returned: success
  type: list
  elements: str
  sample: [/etc/systemd/system/rdm-sriov.service]
"""

import os
import sys
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.module_utils.base.file_diff import difference
from ansible_collections.rdm.provision.plugins.module_utils.base.host import read_text
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.systemd import systemd_runs
from ansible_collections.rdm.provision.plugins.module_utils.base.zip_program import (
    digest,
    digest_of,
    from_argument,
)
from ansible_collections.rdm.provision.plugins.module_utils.container.readiness import refuse_served
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import (
    DockerAPI,
    DockerUnavailable,
    socket_path,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import (
    label_filter,
    no_engine_here,
    refuse_while_needed,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import (
    PLUGIN_SOCKET,
    someone_listens,
)
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin import installation, networks, unit
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin.installation import Paths

ARGUMENT_SPEC: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "cluster": {"type": "str", "required": True},
    "run_as": {"type": "str", "choices": ["auto", "unit", "container"], "default": "auto"},
    "socket": {"type": "path", "default": PLUGIN_SOCKET},
    "engine": {"type": "str", "default": ""},
    "program": {"type": "path", "default": installation.PROGRAM},
    "unit": {"type": "path", "default": unit.PATH},
    "state_directory": {"type": "path", "default": installation.STATE},
    "timeout": {"type": "int", "default": 30},
    "packed": {"type": "str", "required": True},
}


def install(params: Dict[str, Any], paths: Paths, check: bool) -> Dict[str, Any]:
    """Write changed files and start the plugin if needed; return the module's result.

    Raises:
        NodeError: the plugin cannot be installed, something else serves the socket, or a network of the
            cluster cannot be restored.
        OSError: it cannot be written.
    """
    run_as = params["run_as"]
    if run_as == "auto":
        run_as = "unit" if systemd_runs() else "container"
    installation.refuse_foreign(paths, params["cluster"])
    content = from_argument(params["packed"])
    wanted = digest(content)
    text = None
    if run_as == "unit":
        command = [sys.executable, paths.program, "--socket", paths.socket, "--state", paths.state]
        command += ["--engine", socket_path(params["engine"])]
        text = unit.unit(params["cluster"], command, os.path.basename(paths.state))
        # A plugin in a container of the cluster was removed before, or in check mode would have been.
        if not installation.active() and someone_listens(paths.socket):
            api = DockerAPI(params["engine"])
            if not (check and _has_container(api, params["cluster"])):
                refuse_served(api, paths.socket)
    old = {"program": _shown(paths.program), "unit": read_text(paths.unit)}
    new_program = installation.differs(paths.program, content)
    new_unit = installation.differs(paths.unit, text.encode() if text else None)
    enable = text is not None and not installation.enabled(paths.unit)
    start = text is not None and (new_unit or installation.running(paths.socket) != wanted)
    if not check:
        if new_program:
            write_whole(paths.program, content, 0o755)
        if new_unit and text is None:
            installation.control("disable", "--now", unit.NAME)
            os.unlink(paths.unit)
        elif new_unit and text is not None:
            write_whole(paths.unit, text.encode(), 0o644)
        if new_unit:
            installation.control("daemon-reload")
        if enable:
            installation.control("enable", unit.NAME)
        if start:
            installation.control("restart", unit.NAME)
            installation.wait(paths, wanted, params["timeout"])
    restored = _restore(params, paths, check) if text is not None else networks.Restored([], [])
    return {
        "changed": bool(new_program or new_unit or enable or start or restored.names),
        "run_as": run_as,
        "digest": wanted,
        "restarted": start,
        "taught": restored.names,
        "warnings": restored.warnings,
        "removed": [],
        "diff": [
            difference(paths.program, old["program"], "program {0}\n".format(wanted)),
            difference(paths.unit, old["unit"], text or ""),
        ],
    }


def _has_container(api: DockerAPI, cluster: str) -> bool:
    """Return whether a plugin runs in a container of the cluster."""
    return bool(api.get("/containers/json", filters={"label": label_filter(cluster, "plugin")}))


def _restore(params: Dict[str, Any], paths: Paths, check: bool) -> networks.Restored:
    """Restore the plugin's networks. Without an engine, the plugin will query the engine later."""
    try:
        return networks.restore(DockerAPI(params["engine"]), paths.socket, params["cluster"], check)
    except DockerUnavailable:
        return networks.Restored([], [])


def remove(params: Dict[str, Any], paths: Paths, check: bool) -> Dict[str, Any]:
    """Remove the plugin; return the module's result.

    Raises:
        NodeError: the engine or systemctl failed, or a network needs the plugin.
    """
    try:
        installation.refuse_foreign(paths, params["cluster"])
        gone = installation.installed(paths)
    except NodeError:
        gone = []  # another cluster's
    if gone:
        api = DockerAPI(params["engine"])
        try:
            driver = os.path.basename(paths.socket).rpartition(".")[0]
            refuse_while_needed(api, driver, params["cluster"], "the plugin " + paths.program, check)
        except DockerUnavailable:
            if not no_engine_here(api):
                raise
    if gone and not check:
        if os.path.lexists(paths.unit):
            installation.control("disable", "--now", unit.NAME)
        gone = installation.remove(paths)
        if paths.unit in gone:
            installation.control("daemon-reload")
    return {
        "changed": bool(gone),
        "run_as": "",
        "digest": "",
        "restarted": False,
        "taught": [],
        "warnings": [],
        "removed": gone,
        "diff": {"before": "".join(path + "\n" for path in gone), "after": ""},
    }


def _shown(path: str) -> str:
    found = digest_of(path)
    return "program {0}\n".format(found) if found else ""


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Install or remove the plugin, and return the module's result."""
    params = module.params
    paths = Paths(params["program"], params["unit"], params["socket"], params["state_directory"])
    act = install if params["state"] == "present" else remove
    result = act(params, paths, module.check_mode)
    for warning in result.pop("warnings"):
        module.warn(warning)
    if not module._diff:
        del result["diff"]
    return result


if __name__ == "__main__":
    main()
