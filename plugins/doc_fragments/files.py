# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the modules that write sets of small files."""

from __future__ import annotations


class ModuleDocFragment:
    """The fragment for C(extends_documentation_fragment)."""

    DOCUMENTATION = r"""
options:
  directories:
    description: Directories to create, or to remove if this module created them and they are empty.
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
          - Permissions in octal, also for a directory that existed before.
          - By default, a directory that this module creates has C(0755), and any other is unchanged.
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
        description: The file's content.
        type: str
      secret_content:
        description: The file's content, hidden in logs and diffs.
        type: str
      ssh_client_config:
        description:
          - Makes the file an ssh_config with which root reaches every container of a cluster by name or by
            MY_IP, with its own key, and checks the host key.
          - The node makes it, because it is three times as long as its input.
        type: dict
        suboptions:
          address_map:
            description: One line C(node MY_IP) for each node.
            type: str
            required: true
          port:
            description: Port of the containers' sshd.
            type: int
            default: 22
          directory:
            description: Directory of the keys in the container.
            type: str
            default: /etc/rdm/ssh
      mode:
        description: Permissions in octal.
        type: str
        default: "0644"
      validate:
        description:
          - A program and its arguments, where C(%s) is a temporary file with the new content. If it fails,
            nothing is written.
          - It does not run in check mode.
        type: list
        elements: str
      state:
        description: Whether it is there.
        type: str
        choices: [present, absent]
        default: present
  blocks:
    description: Marked blocks in files that belong to others.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: As above. A symbolic link is followed.
        type: str
        required: true
      name:
        description: Name of the block in its marker lines.
        type: str
        required: true
      content:
        description: The lines between the markers.
        type: str
        default: ""
      insert:
        description: Where to insert a new block. An existing one is not moved.
        type: str
        choices: [start, end]
        default: end
      create:
        description: Whether to create a missing file. If not, it is ignored.
        type: bool
        default: true
      needed_by:
        description: An absent block is kept while files match this shell pattern.
        type: str
        default: ""
      mode:
        description: Permissions in octal of a file that is created for the block.
        type: str
        default: "0644"
      state:
        description: Whether the block is there.
        type: str
        choices: [present, absent]
        default: present
  repairs:
    description:
      - Variables that lines of others in the login user's shell files must not set to another value. Such a
        line is commented out, and a backup of the file is kept as C(.bashrc.PID.DATE~).
      - A line that does more than set the variable is not changed.
    type: list
    elements: dict
    default: []
    suboptions:
      variable:
        description: Its name.
        type: str
        required: true
      value:
        description: The variable's value.
        type: str
        required: true
      system:
        description: Whether it is set for all users, or for this one only.
        type: bool
        required: true
"""
