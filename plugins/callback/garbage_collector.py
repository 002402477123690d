# SPDX-License-Identifier: GPL-3.0-or-later
"""Spare a run's processes the search for garbage in what lives as long as they; see DOCUMENTATION."""

from __future__ import annotations

import gc
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: garbage_collector
type: aggregate
short_description: Spare a run's processes the search for garbage in what lives as long as they
version_added: 0.1.0
author: The rdm-provision developers
description:
  - Python searches all objects for garbage again and again. Most are Ansible's own code and what it has read,
    which stay until the end, and the processes that it forks for tasks have them copied by the search. With
    this callback Python leaves alone what there is when a run begins, and searches what is made later less
    often.
  - C(rdm-provision) sets it. For plain C(ansible-playbook), set
    C(callbacks_enabled=rdm.provision.garbage_collector).
requirements:
  - enable in configuration
"""

OBJECTS = 10_000
"""So many new objects, and no fewer, are searched; Python's own figure is 700 to 2,000, by its version."""


class CallbackModule(CallbackBase):
    """The callback: begins with the run, and prints nothing."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "rdm.provision.garbage_collector"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, playbook: Any) -> None:  # noqa: ARG002
        """Before any process is forked, put what there is out of the collector's sight."""
        gc.freeze()
        gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])
