#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""rdm.provision.registry_mirror: the Docker Engine uses mirrors of registries."""

from __future__ import annotations

DOCUMENTATION = r"""
module: registry_mirror
short_description: Point the Docker Engine at registry mirrors
version_added: 0.2.0
description:
  - Adds mirrors of Docker Hub to C(registry-mirrors) of the engine's C(daemon.json), before those that are
    there, and lets the engine read it again. Neither the engine nor a container is restarted.
  - What was added is recorded in the same directory. Just that is taken away again, and a file that nobody
    has changed since is as it was, to the byte.
  - Writes mirrors of a named registry to C(/etc/docker/certs.d/REGISTRY/hosts.toml), with a first line that
    names the engine's socket. Such files are removed when they are no longer needed. A file without that line
    is never changed; the module fails.
options:
  mirrors:
    description:
      - The mirrors of Docker Hub as C(http(s)://host[:port]), the first one to try at the beginning.
      - Those of another registry as C(REGISTRY=http(s)://host[:port][/path]), such as
        C(nvcr.io=https://harbor.example.com/nvcr). The path precedes the names of repositories there. These
        need the containerd image store of Docker Engine 28.0 or newer.
      - Those that an earlier call added and that are not in this list are taken away.
    type: list
    elements: str
    required: true
attributes:
  diff_mode:
    support: full
    description: Shows the mirrors of Docker Hub and each C(hosts.toml), before and after.
requirements:
  - Docker Engine 20.10 or newer
extends_documentation_fragment: rdm.provision.attributes.changes
"""

EXAMPLES = r"""
- name: Configure a mirror of Docker Hub
  rdm.provision.registry_mirror:
    mirrors: ["http://cache.example.com:5000"]

- name: Configure a project of Harbor that caches nvcr.io
  rdm.provision.registry_mirror:
    mirrors: ["nvcr.io=https://harbor.example.com/nvcr"]

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
from ansible_collections.rdm.provision.plugins.module_utils.docker import registry_hosts, registry_mirrors
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI

ARGUMENT_SPEC = {"mirrors": {"type": "list", "elements": "str", "required": True}}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Configure the mirrors, and return the module's result."""
    api, mirrors, change = DockerAPI(), module.params["mirrors"], not module.check_mode
    hosts = registry_hosts.configure(api, mirrors, change)
    hub = registry_mirrors.configure(api, registry_mirrors.of_docker_hub(mirrors), change)
    diff = {state: "".join(url + "\n" for url in hub[state]) for state in ("before", "after")}
    return {
        "changed": hub["changed"] or hosts["changed"],
        "mirrors": hub["after"] + hosts["after"],
        "diff": [diff, *hosts["diffs"]] if hosts["diffs"] else diff,
    }


if __name__ == "__main__":
    main()
