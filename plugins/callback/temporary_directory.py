# SPDX-License-Identifier: GPL-3.0-or-later
"""Give a run's tasks the temporary directory of its user; see DOCUMENTATION."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: temporary_directory
type: aggregate
short_description: Give a run's tasks the temporary directory of its user
version_added: 0.6.0
author: The rdm-provision developers
description:
  - C(rdm-provision) starts Ansible with a temporary directory of the run's own, since ansible-core 2.21 makes
    a socket there that a killed run would leave. This callback restores the directory before the first task,
    because what tasks make may outlive the run.
  - C(rdm-provision) enables it. Elsewhere it does nothing.
requirements:
  - enable in configuration
"""


class CallbackModule(CallbackBase):
    """The callback; it acts at the start of a run, and prints nothing."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "rdm.provision.temporary_directory"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, playbook: Any) -> None:  # noqa: ARG002
        """Restore the directory for this process, and for the workers that it starts."""
        before = os.environ.pop("RDM_TMPDIR", None)
        if before is None:
            return
        if before:
            os.environ["TMPDIR"] = before
        else:
            del os.environ["TMPDIR"]
        # Python chooses again when it needs the directory.
        tempfile.tempdir = None
