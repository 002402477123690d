# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of rdm.provision.sriov_vf: pack the program that recreates VFs at boot."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.plugin_utils.controller.node_programs import (
    BringsProgram,
    program_argument,
)


class ActionModule(BringsProgram):
    """The action."""

    # Packed once, when Ansible loads the action, because each node's task runs in its own process.
    packed = program_argument("boot")
