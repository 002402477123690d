# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of rdm.provision.container: run the module, and drop its arguments."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.task_arguments import (
    DroppedArguments,
)


class ActionModule(DroppedArguments):
    """The action."""
