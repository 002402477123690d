#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write or remove a set of small files in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_files
short_description: Write a set of small files, blocks in files, and directories in one call
description:
  - Writes all the small files that a role needs with one round trip.
  - A file is replaced in one step, so that a reader sees the old or the new one, never half of it.
  - A block is a marked part of a file that belongs to somebody else. Removing it leaves the rest of the file
    as it was, to the byte, and removes the file when it was made for the block.
  - Everything is checked before anything is written. A problem with one entry leaves all of them untouched.
  - With O(owner_marker) a directory belongs to one cluster. Others neither write there nor remove
    anything from it.
  - A directory that is named here and that the module makes gets a small file C(.rdm-provision-made). Only by
    that file does a later call know the directory as its own. A directory that was there before keeps its
    permissions, unless O(directories[].mode) is given, and is never removed.
extends_documentation_fragment:
  - rdm.provision.attributes.changes
  - rdm.provision.files
attributes:
  diff_mode:
    support: full
    description: Shows the lines that change; of a secret only that it changes.
options:
  owner_marker:
    aliases: [claim]
    description:
      - A file that says whose its directory is. It is written with the first of the files and directories,
        and is removed with the directory, when that has nothing else in it and should be absent.
      - If it holds another name, writing files or directories fails, and nothing is removed. Blocks have
        names of their own and are not affected.
    type: dict
    suboptions:
      path:
        description: Absolute path of the file; C(~) is the user that the module runs as.
        type: str
        required: true
      name:
        description: The cluster that owns the directory.
        type: str
        required: true
  owner:
    description:
      - Owner of the directories and files, and of files made for a block; else the current user.
      - A file that belongs to somebody else is replaced; a directory that the module made changes its owner.
    type: str
  group:
    description: Group of the directories and files, and of files made for a block.
    type: str
"""

EXAMPLES = r"""
- name: Write the address map and export MY_IP
  rdm.provision.node_files:
    directories:
      - path: /etc/rdm
    files:
      - path: /etc/rdm/nodes
        content: |
          node1 192.169.16.100
          node2 192.169.16.101
    blocks:
      - path: /etc/bash.bashrc
        name: my_ip
        content: export MY_IP=192.169.16.100
        insert: start
        create: false
"""

RETURN = r"""
paths:
  description: What was changed, made or removed, in the order it was done.
  returned: always
  type: list
  elements: str
  sample: [/etc/rdm, /etc/rdm/nodes]
made:
  description: The directories that were made.
  returned: always
  type: list
  elements: str
  sample: [/etc/rdm]
kept:
  description: >-
    The directories that should be absent and are kept, because other things are in them or because this
    module has not made them.
  returned: always
  type: list
  elements: str
  sample: []
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.file_arguments import (
    FILE_ARGUMENTS,
    OWNER_MARKER,
)
from ansible_collections.rdm.provision.plugins.module_utils.base.file_plan import Plan, with_owner_marker
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module

ARGUMENT_SPEC: Dict[str, Any] = {
    **FILE_ARGUMENTS,
    "owner_marker": {
        **OWNER_MARKER,
        "aliases": ["claim"],
        "deprecated_aliases": [{"name": "claim", "version": "0.7.0", "collection_name": "rdm.provision"}],
    },
    "owner": {"type": "str"},
    "group": {"type": "str"},
}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Write or remove the files, and return the module's result."""
    marker = module.params["owner_marker"]
    plan = Plan(with_owner_marker(module.params, [marker] if marker else []))
    result: Dict[str, Any] = {"paths": plan.changes(), "made": plan.made, "kept": plan.kept}
    result["changed"] = bool(result["paths"])
    if module._diff:
        result["diff"] = plan.diff()
    if not module.check_mode:
        plan.apply(module)
    return result


if __name__ == "__main__":
    main()
