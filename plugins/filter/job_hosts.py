# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the hosts to query about jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.jobs.job_directory import NODES

DOCUMENTATION = r"""
name: job_hosts
short_description: The hosts to query about jobs
description:
  - Returns all nodes and the host that submits jobs to Slurm, the first of the group C(login). Each reports
    whether it has a job.
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
- name: Query jobs
  hosts: "{{ groups | rdm.provision.job_hosts }}"
"""

RETURN = r"""
_value:
  description: A pattern of hosts.
  type: str
"""


def job_hosts(groups: Mapping[str, Sequence[str]]) -> str:
    """Return the pattern; in an inventory without nodes, Slurm chooses them."""
    login = [str(groups["login"][0])] if groups.get("login") else []
    nodes = [] if login and not any(groups.get(name) for name in NODES) else NODES
    return ":".join([*nodes, *login])


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"job_hosts": job_hosts}
