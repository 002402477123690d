# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible's default output without diffs; see DOCUMENTATION."""

from __future__ import annotations

from ansible.plugins.callback.default import CallbackModule as Default
from ansible.plugins.callback.default import CallbackTaskResult

DOCUMENTATION = r"""
name: no_diffs
type: stdout
short_description: Ansible's default output without diffs
version_added: 0.1.0
author: The rdm-provision developers
description:
  - Prints what C(ansible.builtin.default) prints, without diffs. With a thousand nodes, diffs are most of a
    first run's output, and Ansible's main process computes them for every file of every node.
  - C(rdm-provision) enables it unless the user wants Ansible's own output. It takes the diffs from the
    results.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""


class CallbackModule(Default):
    """Ansible's default callback without diffs."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "rdm.provision.no_diffs"

    def v2_on_file_diff(self, result: CallbackTaskResult) -> None:
        """Print nothing."""
