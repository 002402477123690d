# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts that are asked about jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DOCUMENTATION = r"""
name: job_hosts
short_description: The hosts that are asked about jobs
description:
  - The host that jobs are submitted to Slurm from, in an inventory that has the group C(login); otherwise all
    nodes.
author:
  - The rdm-provision developers
positional: _input
options:
  _input:
    description: The variable C(groups).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Ask about jobs
  hosts: "{{ groups | rdm.provision.job_hosts }}"
"""

RETURN = r"""
_value:
  description: A pattern of hosts.
  type: str
"""

NODES = "master:workers"


def job_hosts(groups: Mapping[str, Sequence[str]]) -> str:
    """Return the pattern: of several hosts in the group `login` the first one."""
    return str(groups["login"][0]) if groups.get("login") else NODES


class FilterModule:
    """What Ansible asks for the filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"job_hosts": job_hosts}
