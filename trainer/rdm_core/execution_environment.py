# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a job's processes live, as the agent's start tells them: the training container or the bare host."""

from __future__ import annotations

import os

__all__ = ["EXECUTION_ENVIRONMENT", "FORMER_VARIABLE", "HOST", "is_bare_host"]

EXECUTION_ENVIRONMENT = "RDM_EXECUTION_ENVIRONMENT"
"""The variable that says so; without it, it is the container."""
HOST = "host"
FORMER_VARIABLE = "RDM_PLACE"
"""Its name before 0.6, for control machines and programs of that time; set for this release, too."""


def is_bare_host() -> bool:
    """Return whether this process runs on the bare host, also in an allocation of Slurm's."""
    return HOST in (os.environ.get(EXECUTION_ENVIRONMENT), os.environ.get(FORMER_VARIABLE))
