# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the hosts to query about jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.jobs.job_directory import NODES


def job_hosts(groups: Mapping[str, Sequence[str]]) -> str:
    """Return a pattern of all nodes and the host that submits jobs to Slurm, the first of the group `login`.

    Each of them reports whether it has a job. In an inventory without nodes, Slurm chooses them.

    Args:
        groups: the variable `groups`.
    """
    login = [str(groups["login"][0])] if groups.get("login") else []
    nodes = [] if login and not any(groups.get(name) for name in NODES) else NODES
    return ":".join([*nodes, *login])


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"job_hosts": job_hosts}
