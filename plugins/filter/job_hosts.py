# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the hosts to query about jobs; see DOCUMENTATION."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.jobs.job_directory import NODES

DOCUMENTATION = r"""
name: job_hosts
short_description: The hosts to query about jobs
author: The rdm-provision developers
description:
  - All nodes, and the host that submits jobs to Slurm, the first of the group C(login).
  - Each of them reports whether it has a job. In an inventory without nodes, Slurm chooses them.
positional: _input
options:
  _input:
    description: The variable C(groups).
    type: dict
    required: true
"""

RETURN = r"""
_value: {description: The pattern of hosts., type: str}
"""


def job_hosts(groups: Mapping[str, Sequence[str]]) -> str:
    """Return a pattern of all nodes and the host that submits jobs to Slurm."""
    login = [str(groups["login"][0])] if groups.get("login") else []
    nodes = [] if login and not any(groups.get(name) for name in NODES) else NODES
    return ":".join([*nodes, *login])


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"job_hosts": job_hosts}
