# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the modules that write sets of small files."""

from __future__ import annotations


class ModuleDocFragment:
    """The fragment for C(extends_documentation_fragment)."""

    DOCUMENTATION = r"""
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
          address_map:
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
  repairs:
    description:
      - Variables whose value no line of somebody else's may change, in the files that the shells of the user
        who logged in read. A line that does becomes a comment, and the file as it was is kept beside it, as
        C(.bashrc.PID.DATE~).
      - A line that does more than set the variable is left alone.
    type: list
    elements: dict
    default: []
    suboptions:
      variable:
        description: Its name.
        type: str
        required: true
      value:
        description: The right one.
        type: str
        required: true
      system:
        description: Whether it is set for all users, or for this one.
        type: bool
        required: true
"""
