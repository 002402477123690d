#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report what a torch build must match on a node: the GPUs' driver or architectures."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver
short_description: What a build of torch has to fit on a node
description:
  - Reads the version of NVIDIA's driver and the architectures of AMD's GPUs from sysfs.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.reads
options:
  sysfs_root:
    description: Where sysfs is.
    type: str
    default: /sys
"""

EXAMPLES = r"""
- name: Gather the node's GPU driver
  rdm.provision.gpu_driver:
"""

RETURN = r"""
nvidia:
  description: The version of NVIDIA's driver; empty without one.
  returned: always
  type: str
  sample: 550.54.15
amd:
  description: The architectures of AMD's GPUs.
  returned: always
  type: list
  elements: str
  sample: [gfx942]
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.hardware.sysfs import gpu_driver

ARGUMENT_SPEC: Dict[str, Any] = {"sysfs_root": {"type": "str", "default": "/sys"}}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Return the module's result."""
    return gpu_driver(module.params["sysfs_root"])


if __name__ == "__main__":
    main()
