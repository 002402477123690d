# SPDX-License-Identifier: GPL-3.0-or-later
"""Where git gets what comes into a bare host's Python environment, or beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.node.apex import SAFE_WAYS, has_credentials
from ansible_collections.rdm.provision.plugins.module_utils.node.local_path import HOST_NAME
from ansible_collections.rdm.provision.plugins.plugin_utils.refusal import Problem

APEX = "python_env_apex"
MEGATRON = "python_env_megatron"
REPOSITORY = "python_env_megatron_repository"


def source_problems(host: str, given: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with a host's addresses for git, in words that do not repeat a secret.

    Args:
        host: its name.
        given: its variables of the role python_env, evaluated.
    """
    problems = []
    for name in (APEX, REPOSITORY):
        if has_credentials(str(given.get(name) or "")):
            reason = "has a user or a password in its address, which logs and git's own files would show"
            problems.append(Problem(host, name, reason, SAFE_WAYS))
    directory = str(given.get(MEGATRON) or "")
    if given.get(REPOSITORY) and HOST_NAME in directory:
        reason = f"is {directory}, and git knows no {HOST_NAME}"
        remedy = f"give a directory without it, or check it out yourself and leave {REPOSITORY} empty"
        problems.append(Problem(host, MEGATRON, reason, remedy))
    return problems
