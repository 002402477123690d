#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""rdm.provision.registry_mirror: the Docker Engine uses mirrors for images of Docker Hub."""

from __future__ import annotations

DOCUMENTATION = r"""
module: registry_mirror
short_description: Point the Docker Engine at registry mirrors
version_added: 0.2.0
description:
  - Adds mirrors to C(registry-mirrors) of the engine's C(daemon.json), before those that are there, and lets
    the engine read it again. Neither the engine nor a container is restarted.
  - What was added is recorded in the same directory. Just that is taken away again, and a file that nobody
    has changed since is as it was, to the byte.
  - The engine uses mirrors for images of Docker Hub only.
options:
  mirrors:
    description:
      - The mirrors as C(http(s)://host[:port]), the first one to try at the beginning.
      - Those that an earlier call added and that are not in this list are taken away.
    type: list
    elements: str
    required: true
attributes:
  diff_mode:
    support: full
    description: Shows the mirrors that the engine uses, before and after.
requirements:
  - Docker Engine 20.10 or newer
author:
  - The rdm-provision authors
extends_documentation_fragment: rdm.provision.attributes.changes
"""

EXAMPLES = r"""
- name: Configure a mirror of Docker Hub
  rdm.provision.registry_mirror:
    mirrors: ["http://cache.example.com:5000"]

- name: Let the engine pull from the registries themselves again
  rdm.provision.registry_mirror:
    mirrors: []
"""

RETURN = r"""
mirrors:
  description: The mirrors that the engine uses, or would use in check mode.
  returned: success
  type: list
  elements: str
  sample: ["http://cache.example.com:5000"]
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.docker.registry_mirrors import configure

ARGUMENT_SPEC = {"mirrors": {"type": "list", "elements": "str", "required": True}}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Configure the mirrors, and return the module's result."""
    result = configure(DockerAPI(), module.params["mirrors"], change=not module.check_mode)
    diff = {state: "".join(url + "\n" for url in result[state]) for state in ("before", "after")}
    return {"changed": result["changed"], "mirrors": result["after"], "diff": diff}


if __name__ == "__main__":
    main()
