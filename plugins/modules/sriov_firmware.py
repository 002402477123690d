#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Enable SR-IOV in the firmware of network adapters."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sriov_firmware
short_description: Switch SR-IOV on in the firmware of network adapters
description:
  - Sets C(SRIOV_EN) and C(NUM_OF_VFS) of NVIDIA (Mellanox) adapters with C(mstconfig) or C(mlxconfig), where
    they are to allow fewer VFs after the next boot than are wanted. A higher number stays.
  - All adapters are queried before the first is changed. Interfaces of other vendors are left alone.
  - What is set holds after a reboot, which is not done here.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.changes
attributes:
  diff_mode:
    support: full
    description: Shows the settings of each adapter for the next boot, as they are and as they shall be.
  idempotent:
    support: full
    description: It compares with what holds after the next boot.
options:
  pfs:
    aliases: [parents]
    description: Network interfaces, or PCI addresses, of the adapters' physical functions.
    type: list
    elements: str
    required: true
  vfs:
    description: How many VFs each shall allow.
    type: int
    required: true
  sysfs_root:
    description: Where the kernel's sysfs is; another directory in tests.
    type: path
    default: /sys
"""

EXAMPLES = r"""
- name: Let the firmware allow VFs
  rdm.provision.sriov_firmware:
    pfs: [ib0]
    vfs: 8
  register: firmware

- name: Reboot, so that the adapter reads its new settings
  ansible.builtin.reboot:
  when: firmware.reboot_required
"""

RETURN = r"""
reboot_required: {description: Whether an adapter does not offer the VFs yet., returned: success, type: bool}
reasons:
  description: What waits for the reboot, in sentences.
  returned: success
  type: list
  elements: str
  sample: ["ib0 (0000:41:00.0) offers 0 of 8 VFs"]
"""

from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.programs import ProgramProblem
from ansible_collections.rdm.provision.plugins.module_utils.hardware import rdma_tools
from ansible_collections.rdm.provision.plugins.module_utils.sriov import pf
from ansible_collections.rdm.provision.plugins.module_utils.sriov.observed_vfs import device_of

ARGUMENT_SPEC: Dict[str, Any] = {
    "pfs": {
        "type": "list",
        "elements": "str",
        "required": True,
        "aliases": ["parents"],
        "deprecated_aliases": [{"name": "parents", "version": "0.8.0", "collection_name": "rdm.provision"}],
    },
    "vfs": {"type": "int", "required": True},
    "sysfs_root": {"type": "path", "default": "/sys"},
}


def adapters(pfs: List[str], root: str) -> List[Dict[str, Any]]:
    """Return the interfaces' adapters with such a firmware, each with its settings.

    Raises:
        ProgramProblem: there is no such interface, or its firmware cannot be read.
    """
    found = []
    for name in pfs:
        if not device_of(name, root)[0]:
            raise ProgramProblem("{0} is neither an interface nor a PCI device of the node".format(name))
        one = pf.fabric_interface(name, root)
        if one["vendor"] != pf.MELLANOX or one["virtual"]:
            continue
        settings = rdma_tools.firmware_settings(one["pci"])
        if settings["error"]:
            raise ProgramProblem("the firmware of {0[name]} ({0[pci]}): {1}".format(one, settings["error"]))
        found.append(dict(one, next=settings["next"]))
    return found


def _text(one: Dict[str, Any], sriov: Any, vfs: Any) -> str:
    return "{0[name]} ({0[pci]}): SRIOV_EN={1} NUM_OF_VFS={2}\n".format(one, sriov, vfs)


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Return the module's result."""
    vfs = module.params["vfs"]
    if vfs < 1:
        raise NodeError("vfs {0} is not a number of VFs: give 1 or more".format(vfs))
    found = adapters(module.params["pfs"], module.params["sysfs_root"])
    lacking = [one for one in found if not rdma_tools.allows(one["next"], vfs)]
    for one in [] if module.check_mode else lacking:
        rdma_tools.set_firmware(one["pci"], max(vfs, one["next"]["vfs"] or 0))
    waiting = [one for one in found if one["total_vfs"] < vfs]
    sentence = "{0[name]} ({0[pci]}) offers {0[total_vfs]} of {1} VFs"
    result: Dict[str, Any] = {
        "changed": bool(lacking),
        "reboot_required": bool(waiting),
        "reasons": [sentence.format(one, vfs) for one in waiting],
    }
    if lacking:
        result["diff"] = {
            "before": "".join(_text(one, one["next"]["sriov"], one["next"]["vfs"]) for one in lacking),
            "after": "".join(_text(one, True, max(vfs, one["next"]["vfs"] or 0)) for one in lacking),
        }
    return result


if __name__ == "__main__":
    main()
