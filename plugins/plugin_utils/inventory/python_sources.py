# SPDX-License-Identifier: GPL-3.0-or-later
"""Validate the Python version of a bare host's environment, and the git repositories of its packages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.local_path import HOST_NAME
from ansible_collections.rdm.provision.plugins.module_utils.python_env.apex import SAFE_WAYS, has_credentials
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem

APEX = "python_env_apex"
MEGATRON = "python_env_megatron"
REPOSITORY = "python_env_megatron_repository"
VERSION = "python_env_version"
OLDEST = (3, 11)
"""The oldest Python that the trainer supports, as in its pyproject.toml."""


def source_problems(host: str, given: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with a host's git repositories, without repeating a secret.

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
        hint = f"give a directory without it, or check it out yourself and leave {REPOSITORY} empty"
        problems.append(Problem(host, MEGATRON, reason, hint))
    return problems


def version_problems(host: str, given: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with a host's Python version.

    Args:
        host: its name.
        given: its variables of the role python_env, evaluated.
    """
    version = str(given.get(VERSION, ""))
    numbers = re.fullmatch(r"([0-9]+)\.([0-9]+)(\.[0-9]+)?", version)
    if VERSION not in given or (numbers and (int(numbers[1]), int(numbers[2])) >= OLDEST):
        return []
    oldest = ".".join(map(str, OLDEST))
    reason = f"is older than {oldest}, and the trainer needs that" if numbers else "is no version of Python"
    return [Problem(host, f"{VERSION} {version}", reason, f"give {oldest} or newer, in quotes")]
