#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write, and take away again, a set of small files in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_files
short_description: Write a set of small files, blocks in files, and directories in one call
description:
  - Writes all the small files that a role needs with one round trip.
  - A file is replaced in one step, so that a reader sees the old or the new one, never half of it.
  - A block is a marked part of a file that belongs to somebody else. Removing it leaves the rest of the file
    as it was, to the byte, and removes the file when it was made for the block.
  - Everything is looked at before anything is written. A problem with one entry leaves all of them untouched.
  - With O(claim) a directory belongs to one cluster. Others neither write there nor remove anything from it.
  - A directory that is named here and that the module makes gets a small file C(.rdm-provision-made). Only by
    that file does a later call know the directory as its own. A directory that was there before keeps its
    permissions, unless O(directories[].mode) is given, and is never removed.
author:
  - The rdm-provision developers
extends_documentation_fragment: rdm.provision.attributes.changes
attributes:
  diff_mode:
    support: full
    description: Shows the lines that change; of a secret only that it changes.
options:
  directories:
    description: Directories to make, or to remove when this module made them and nothing else is in them.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path; C(~) is the user's home, C(%n) the node's host name.
        type: str
        required: true
      mode:
        description:
          - Permissions in octal. They hold whoever made the directory.
          - Unless given, a directory that this module made has C(0755), and any other is left as it is.
        type: str
      state:
        description: Whether it is there.
        type: str
        choices: [present, absent]
        default: present
  files:
    description: Files to write or remove.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path; C(~) is the user's home, C(%n) the node's host name.
        type: str
        required: true
      content:
        description: What the file holds.
        type: str
      secret_content:
        description: What the file holds, where nobody may see it in a log or a difference.
        type: str
      ssh_client_config:
        description:
          - Makes the file an ssh_config, with which root reaches every container of a cluster by name or by
            MY_IP, with its own key and with the host key checked.
          - It is worked out on the node, because it is three times as long as what it is made of.
        type: dict
        suboptions:
          dictionary:
            description: One line C(node MY_IP) for each node.
            type: str
            required: true
          port:
            description: Where the containers' sshd listens.
            type: int
            default: 22
          directory:
            description: Where the keys are, in the container.
            type: str
            default: /etc/rdm/ssh
      mode:
        description: Permissions in octal.
        type: str
        default: "0644"
      state:
        description: Whether it is there.
        type: str
        choices: [present, absent]
        default: present
  blocks:
    description: Marked blocks in files that belong to somebody else.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: As above. A symbolic link is followed.
        type: str
        required: true
      name:
        description: Names the block in its marker lines.
        type: str
        required: true
      content:
        description: The lines between the markers.
        type: str
        default: ""
      insert:
        description: Where a new block goes. One that is there stays where it is.
        type: str
        choices: [start, end]
        default: end
      create:
        description: Whether to make the file when it is missing. If not, a missing file is left alone.
        type: bool
        default: true
      needed_by:
        description: A block that is to be absent stays while files match this pattern of a shell.
        type: str
        default: ""
      mode:
        description: Permissions in octal of a file that is made for the block.
        type: str
        default: "0644"
      state:
        description: Whether the block is there.
        type: str
        choices: [present, absent]
        default: present
  claim:
    description:
      - A file that says whose its directory is. It is written with the first of the files and directories,
        and goes when the directory has nothing else in it and is to be absent.
      - Where it holds another name, to write files or directories is a failure, and what is to be absent
        stays. Blocks have names of their own and are not affected.
    type: dict
    suboptions:
      path:
        description: Absolute path of the file; C(~) is the user that the module runs as.
        type: str
        required: true
      name:
        description: Who claims the directory.
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
- name: Write the dictionary and export MY_IP
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
    The directories that were to be removed and are kept, because other things are in them or because this
    module has not made them.
  returned: always
  type: list
  elements: str
  sample: []
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.constants import CONFIG_DIR
from ansible_collections.rdm.provision.plugins.module_utils.node.echo import echo
from ansible_collections.rdm.provision.plugins.module_utils.node.file_plan import (
    CONTENTS,
    Plan,
    Problem,
    claimed,
)

_STATE = {"type": "str", "choices": ["present", "absent"], "default": "present"}

ARGUMENT_SPEC: Dict[str, Any] = {
    "directories": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "mode": {"type": "str"},
            "state": _STATE,
        },
    },
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "content": {"type": "str"},
            "secret_content": {"type": "str", "no_log": True},
            "ssh_client_config": {
                "type": "dict",
                "options": {
                    "dictionary": {"type": "str", "required": True},
                    "port": {"type": "int", "default": 22},
                    "directory": {"type": "str", "default": CONFIG_DIR + "/ssh"},
                },
            },
            "mode": {"type": "str", "default": "0644"},
            "state": _STATE,
        },
        "mutually_exclusive": [CONTENTS],
        "required_if": [["state", "present", CONTENTS, True]],
    },
    "blocks": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
            "content": {"type": "str", "default": ""},
            "insert": {"type": "str", "choices": ["start", "end"], "default": "end"},
            "create": {"type": "bool", "default": True},
            "needed_by": {"type": "str", "default": ""},
            "mode": {"type": "str", "default": "0644"},
            "state": _STATE,
        },
    },
    "claim": {
        "type": "dict",
        "options": {"path": {"type": "str", "required": True}, "name": {"type": "str", "required": True}},
    },
    "owner": {"type": "str"},
    "group": {"type": "str"},
}


def main() -> None:
    """Plan, then apply unless in check mode."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        plan = Plan(claimed(module.params))
        result: Dict[str, Any] = {"paths": plan.changes(), "made": plan.made, "kept": plan.kept}
        result["changed"] = bool(result["paths"])
        if module._diff:
            result["diff"] = plan.diff()
        if not module.check_mode:
            plan.apply(module)
    except Problem as problem:
        module.fail_json(msg=str(problem), **echo(module))
    except OSError as error:
        where = error.filename or "cannot write"
        module.fail_json(msg="{0}: {1}".format(where, error.strerror or error), **echo(module))
    module.exit_json(**result, **echo(module))


if __name__ == "__main__":
    main()
