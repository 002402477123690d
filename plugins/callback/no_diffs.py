# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible's default output without diffs; see DOCUMENTATION."""

from __future__ import annotations

from ansible.plugins.callback.default import CallbackModule as Default
from ansible.plugins.callback.default import CallbackTaskResult

DOCUMENTATION = r"""
name: no_diffs
type: stdout
short_description: Ansible's own output without differences
version_added: 0.1.0
author: The rdm-provision developers
description:
  - Prints what C(ansible.builtin.default) prints, but no differences. With a thousand nodes these are most of
    a first run's output, and Ansible's one main process compares every file of every node to print them.
  - C(rdm-provision) sets it unless it is asked for Ansible's own output. It has the differences from the
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
