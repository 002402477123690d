# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse what would end running jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem


def ended_jobs(running: Mapping[str, Sequence[str]], whole_node: bool = False) -> list[Problem]:
    """Return a problem for each job that would be ended.

    Args:
        running: node name -> the jobs that run there.
        whole_node: the jobs end with the node, which the user cannot accept, instead of with their container.
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
