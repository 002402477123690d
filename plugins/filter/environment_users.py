# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn the hosts' results on an environment into sentences on why it is not removed; see DOCUMENTATION."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.inventory.manager import split_host_pattern

DOCUMENTATION = r"""
name: environment_users
short_description: Why an environment is not removed
author: The rdm-provision developers
description:
  - Names every host on which a job uses the environment, and every host that did not answer.
positional: _input, limit
options:
  _input:
    description: For each host its last result of M(rdm.provision.python_env); empty if it has none.
    type: dict
    required: true
  limit:
    description: The run's C(--limit), for the hint that leaves out hosts without an answer.
    type: str
    default: ""
"""

RETURN = r"""
_value: {description: One sentence for each reason., type: list}
"""


def environment_users(results: Mapping[str, Mapping[str, Any]], limit: str = "") -> list[str]:
    """Return why an environment is not removed, one sentence for each reason."""
    problems = [f"{host}: {result['msg']}" for host, result in results.items() if "used_by" in result]
    silent = [host for host, result in results.items() if "used_by" not in result and not _answered(result)]
    if silent:
        problems.append(
            f"a job may run on {', '.join(silent)}, which cannot be queried: repair that, or leave it out "
            f"with --limit {shlex.quote(limit_without(limit, silent))}"
        )
    return problems


def limit_without(limit: str, hosts: Iterable[str]) -> str:
    """Return a value of ``--limit`` for the same hosts as before, without these."""
    # Ansible splits a pattern that contains a comma only at its commas.
    return ",".join([*(split_host_pattern(limit) or ["all"]), *(f"!{host}" for host in hosts)])


def _answered(result: Mapping[str, Any]) -> bool:
    return bool(result) and not result.get("failed") and not result.get("unreachable")


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"environment_users": environment_users}
