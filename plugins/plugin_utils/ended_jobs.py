# SPDX-License-Identifier: GPL-3.0-or-later
"""The refusal of what would end training jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ansible_collections.rdm.provision.plugins.plugin_utils.refusal import Problem


def ended_jobs(running: Mapping[str, Sequence[str]]) -> list[Problem]:
    """Return a problem for each job that would be ended, from the names of those that run on each node."""
    return [
        Problem(
            node,
            f"the job {job}",
            "runs in the container, and would lose its steps since its last checkpoint",
            f"stop it first (rdm-provision stop -i INVENTORY {job} saves a checkpoint), wait for its end, or "
            "let them be lost with -e container_spare_jobs=false",
        )
        for node, jobs in running.items()
        for job in jobs
    ]
