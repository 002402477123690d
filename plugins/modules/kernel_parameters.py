#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add parameters to the kernel's command line of the next boot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_parameters
short_description: Add parameters to the kernel's command line of the next boot
description:
  - Writes C(/etc/default/grub.d/rdm.cfg) and runs C(update-grub) where that is (Debian, Ubuntu), else uses
    C(grubby) (Red Hat and its kin). Other boot loaders are refused with what to add.
  - Parameters that the kernel was booted with are not added again, whoever has set them.
  - What is set holds after a reboot, which is not done here.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.changes
attributes:
  idempotent:
    support: full
    description: It compares with the command line, and with what it has written.
options:
  parameters:
    description:
      - Such as C(iommu=pt).
      - Empty means those that switch on the IOMMU of the node's CPU, and keep it from slowing devices down.
    type: list
    elements: str
    default: []
  root:
    description: Where the node's files are; another directory in tests.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Enable the IOMMU
  rdm.provision.kernel_parameters:
  register: kernel
"""

RETURN = r"""
reboot_required: {description: Whether the kernel runs without one of them., returned: success, type: bool}
reasons:
  description: What waits for the reboot, in sentences.
  returned: success
  type: list
  elements: str
  sample: ["the kernel was booted without intel_iommu=on iommu=pt"]
"""

import os
import re
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.module_utils.base.file_diff import difference
from ansible_collections.rdm.provision.plugins.module_utils.base.host import read_text
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.programs import (
    ProgramProblem,
    find_program,
    run_program,
)
from ansible_collections.rdm.provision.plugins.module_utils.hardware import iommu

ARGUMENT_SPEC: Dict[str, Any] = {
    "parameters": {"type": "list", "elements": "str", "default": []},
    "root": {"type": "path", "default": "/"},
}
DROP_IN = "etc/default/grub.d/rdm.cfg"
# A shell reads it as part of a file.
_PARAMETER = re.compile(r"[A-Za-z0-9_.-]+(=[A-Za-z0-9_.,:-]+)?$")
_UPDATE_S = 300.0


def drop_in(parameters: List[str]) -> str:
    """Return the text of GRUB's drop-in."""
    line = 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {0}"'.format(" ".join(parameters))
    return "# Written by rdm.provision.kernel_parameters.\n{0}\n".format(line)


def grubby_lacks(information: str, parameters: List[str]) -> List[str]:
    """Return the parameters that a boot entry lacks, from the output of `grubby --info=ALL`."""
    lines = re.findall(r'^args="(.*)"$', information, re.MULTILINE)
    missing = {one for line in lines for one in iommu.lacking(parameters, line.split())}
    return [one for one in parameters if one in missing]


def with_grub(path: str, update: str, parameters: List[str], check: bool) -> Dict[str, Any]:
    """Ensure that GRUB's drop-in has the parameters; return what changed.

    Raises:
        ProgramProblem: GRUB rejects it; the file is unchanged.
        OSError: it cannot be written.
    """
    before, after = read_text(path), drop_in(parameters)
    if before == after:
        return {"changed": False}
    if not check:
        write_whole(path, after.encode(), 0o644)
        try:
            run_program([update], _UPDATE_S)
        except ProgramProblem:
            if before:
                write_whole(path, before.encode(), 0o644)
            else:
                os.unlink(path)
            raise
    return {"changed": True, "diff": difference(path, before, after)}


def with_grubby(program: str, parameters: List[str], check: bool) -> Dict[str, Any]:
    """Ensure that all boot entries have the parameters; return what changed.

    Raises:
        ProgramProblem: grubby fails.
    """
    missing = grubby_lacks(run_program([program, "--info=ALL"], _UPDATE_S), parameters)
    if missing and not check:
        run_program([program, "--update-kernel=ALL", "--args={0}".format(" ".join(missing))], _UPDATE_S)
    diff = {"before": "", "after": "{0}\n".format(" ".join(missing))}
    return {"changed": True, "diff": diff} if missing else {"changed": False}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Change what the boot loader passes, and return the module's result."""
    root = module.params["root"]
    wanted = module.params["parameters"] or iommu.iommu_parameters(
        iommu.cpu_vendor(os.path.join(root, "sys"))
    )
    odd = [one for one in wanted if not _PARAMETER.match(one)]
    if odd:
        raise NodeError("{0!r} is not a kernel parameter: write name or name=value".format(odd[0]))
    missing = iommu.lacking(wanted, read_text(os.path.join(root, "proc/cmdline")).split())
    result: Dict[str, Any] = {}
    update, grubby = find_program("update-grub"), find_program("grubby")
    try:
        if missing and update:
            result = with_grub(os.path.join(root, DROP_IN), update, wanted, module.check_mode)
        elif missing and grubby:
            result = with_grubby(grubby, wanted, module.check_mode)
        elif missing:
            raise NodeError(
                "neither update-grub nor grubby is installed: add {0} to the kernel's command line "
                "in the configuration of the node's boot loader".format(" ".join(missing))
            )
    except ProgramProblem as problem:
        raise NodeError("the kernel's command line is as it was: {0}".format(problem)) from None
    reasons = ["the kernel was booted without {0}".format(" ".join(missing))] if missing else []
    return {**result, "reboot_required": bool(missing), "reasons": reasons}


if __name__ == "__main__":
    main()
