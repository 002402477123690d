#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait until a container is ready, or report why it is not."""

from __future__ import annotations

DOCUMENTATION = r"""
module: container_ready
short_description: Make sure that a container's name is free for us, or wait until the container is ready
description:
  - With O(state=unclaimed), refuses when a container of that name is not the cluster's, or when something
    else serves the plugin's socket. Run it before the container is started.
  - With O(state=ready), waits until the container has written its ready line and until the plugin in it
    answers the request that Docker sends it. A container that ends, or that is not ready in time, is reported
    with its last words.
  - A plugin rdm-sriov whose state is lost then gets the networks that the engine has and it lacks.
extends_documentation_fragment: rdm.provision.attributes.no_diff
attributes:
  check_mode:
    support: full
    description: In check mode nothing was started, so O(state=ready) does not wait. No networks are sent.
  idempotent:
    support: full
    description: A plugin that knows its networks gets nothing.
options:
  name:
    description: The container's name.
    type: str
    required: true
  cluster:
    description: The cluster's name, the value of the label V(rdm.provision.cluster).
    type: str
    required: true
  state:
    description: What to make sure of.
    type: str
    choices: [ready, unclaimed]
    default: ready
  socket:
    description: The unix socket of the network plugin that runs in the container; empty when it is none.
    type: str
    default: ""
  ready_line:
    description:
      - Text of the line that the container writes when it is ready; empty means that running is enough.
      - A container that has been up for longer than O(timeout) counts as ready, since its log may have been
        rotated.
    type: str
    default: ""
  timeout:
    description: Seconds to wait.
    type: int
    default: 30
"""

EXAMPLES = r"""
- name: Wait for the plugin
  rdm.provision.container_ready:
    name: rdm-sriov-plugin
    cluster: rdm
    socket: /run/docker/plugins/sriov.sock
    ready_line: Ready to accept commands.
"""

RETURN = r"""
waited: {description: Seconds until it was ready., returned: success, type: float, sample: 0.4}
taught:
  description: Names of the networks that the plugin got again, or would get.
  returned: success
  type: list
  elements: str
  sample: [ibnet]
"""

import time
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.container.readiness import (
    refuse_taken,
    wait_ready,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin import networks

ARGUMENT_SPEC: Dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "cluster": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["ready", "unclaimed"], "default": "ready"},
    "socket": {"type": "str", "default": ""},
    "ready_line": {"type": "str", "default": ""},
    "timeout": {"type": "int", "default": 30},
}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Wait for the container, and return the module's result."""
    params = module.params
    began = time.monotonic()
    restored = networks.Restored([], [])
    api = DockerAPI()
    if params["state"] == "unclaimed":
        refuse_taken(api, params["name"], params["cluster"], params["socket"])
    else:
        if not module.check_mode:
            wait_ready(api, params["name"], params["socket"], params["ready_line"], params["timeout"])
        if params["socket"]:
            restored = networks.restore(api, params["socket"], params["cluster"], module.check_mode)
    for warning in restored.warnings:
        module.warn(warning)
    waited = round(time.monotonic() - began, 3)
    return {"changed": bool(restored.names), "waited": waited, "taught": restored.names}


if __name__ == "__main__":
    main()
