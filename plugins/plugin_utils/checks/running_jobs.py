# SPDX-License-Identifier: GPL-3.0-or-later
"""The refusal of what would end training jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem


def ended_jobs(running: Mapping[str, Sequence[str]], whole_node: bool = False) -> list[Problem]:
    """Return a problem for each job that would be ended.

    Args:
        running: the names of those that run on each node.
        whole_node: they end with the node, which nobody may choose, and not with their container.
    """
    where = "on the node" if whole_node else "in the container"
    otherwise = (
        " and wait for its end"
        if whole_node
        else ", wait for its end, or let them be lost with -e container_protect_jobs=false"
    )
    return [
        Problem(
            node,
            f"the job {job}",
            f"runs {where}, and would lose its steps since its last checkpoint",
            f"stop it first (rdm-provision stop {job} saves a checkpoint){otherwise}",
        )
        for node, jobs in running.items()
        for job in jobs
    ]
