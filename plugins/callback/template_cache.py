# SPDX-License-Identifier: GPL-3.0-or-later
"""Compile each template once per run; see DOCUMENTATION."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: template_cache
type: aggregate
short_description: Compile each template once per run
version_added: 0.1.0
author: The rdm-provision developers
description:
  - Ansible compiles the templates of a task for each node, which is a quarter of a first run's cost on the
    controller. With this callback, the first process to use a template compiles it for all others.
  - The compiled code is in the run's temporary directory and is removed with it. Results of templates are not
    stored, nor is code of templates that may come from something encrypted.
  - It depends on internals of ansible-core. If a version lacks them, templates are compiled as without it.
  - C(rdm-provision) enables it. For plain C(ansible-playbook), set
    C(callbacks_enabled=rdm.provision.template_cache).
requirements:
  - enable in configuration
"""

COMPILED = "ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.compiled_templates"
DIRECTORY = "rdm_templates"
"""Below a run's temporary directory, which only the user can access."""


class CallbackModule(CallbackBase):
    """The callback; it acts at the start of a run, and prints nothing."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "rdm.provision.template_cache"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, playbook: Any) -> None:  # noqa: ARG002
        """Let the run's processes share compiled templates."""
        with contextlib.suppress(ImportError, AttributeError, TypeError, OSError):
            compiled = importlib.import_module(COMPILED)
            directory = Path(constants.DEFAULT_LOCAL_TMP, DIRECTORY)
            directory.mkdir(mode=0o700)
            compiled.install(compiled.Store(directory))
