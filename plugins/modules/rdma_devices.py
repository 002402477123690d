#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""rdm.provision.rdma_devices: the RDMA device and the character devices of a network function."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rdma_devices
short_description: Find the RDMA device and the character devices of a physical or virtual function
description:
  - Finds the RDMA device of a network function by its PCI function, by the interfaces of the device's GIDs,
    by the interface that it was made on (soft RoCE), and by the GUID in an IPoIB address, whichever the
    driver has.
  - Fails when two of these lead to different devices, and reports what each found.
extends_documentation_fragment: rdm.provision.attributes.reads
options:
  function:
    description:
      - An interface of the node, such as V(ib0), or a PCI address, such as V(0000:41:00.2).
      - While a container has the interface of a VF, only its PCI address finds it.
    type: str
    required: true
  required:
    description:
      - Whether to fail when it has none. Unless set, an InfiniBand interface must have one, and a VF whose
        physical function has one.
    type: bool
"""

EXAMPLES = r"""
- name: Find the devices that a container needs for RDMA over a VF
  rdm.provision.rdma_devices:
    function: "0000:41:00.2"
  register: rdma

- name: Show the devices
  ansible.builtin.debug:
    msg: "{{ rdma.device }}: {{ rdma.paths | join(', ') }}"
"""

RETURN = r"""
device:
  description: The RDMA device; empty where the function has none.
  returned: success
  type: str
  sample: mlx5_2
paths:
  description: Its character devices, and C(/dev/infiniband/rdma_cm), which all share.
  returned: success
  type: list
  elements: str
  sample: [/dev/infiniband/uverbs2, /dev/infiniband/umad2, /dev/infiniband/issm2, /dev/infiniband/rdma_cm]
pci:
  description: The function's PCI address; empty for an interface that has none.
  returned: success
  type: str
  sample: "0000:41:00.2"
interfaces:
  description: The function's interfaces in this network namespace.
  returned: success
  type: list
  elements: str
  sample: [ib2]
ways:
  description: By what it was found (C(device), C(gid_attrs), C(parent), C(guid)), and where each leads to.
  returned: success
  type: dict
  sample: {device: [mlx5_2], guid: [mlx5_2]}
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.hardware import rdma

ARGUMENT_SPEC: Dict[str, Any] = {
    "function": {"type": "str", "required": True},
    "required": {"type": "bool"},
}


def find(name: str, must: Any = None, root: str = "/sys", dev_root: str = "/dev") -> Dict[str, Any]:
    """Return the module's result.

    Args:
        name: an interface or a PCI address.
        must: whether it must have an RDMA device; None: only if its type or its PF implies it.
        root: where sysfs is.
        dev_root: where the device nodes are.

    Raises:
        NodeError: there is no such function, or its devices cannot be found out or used.
    """
    what = rdma.function(name, root)
    why = rdma.expected(what, root) or ("it is required" if must else "")
    found = rdma.required(what, "" if must is False else why, root, dev_root)
    return {**found._asdict(), **what._asdict()}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Return the module's result."""
    return find(module.params["function"], module.params["required"])


if __name__ == "__main__":
    main()
