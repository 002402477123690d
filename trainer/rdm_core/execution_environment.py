# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a job's processes run: in the training container or on a bare host. The agent's start sets it."""

from __future__ import annotations

import os

EXECUTION_ENVIRONMENT = "RDM_EXECUTION_ENVIRONMENT"
"""The environment variable that names it; without it, processes run in the container."""
HOST = "host"
FORMER_VARIABLE = "RDM_PLACE"
"""Its name before 0.6, for control machines and programs of that time; set for this release, too."""


def is_bare_host() -> bool:
    """Return whether this process runs on a bare host, also within a Slurm allocation."""
    return HOST in (os.environ.get(EXECUTION_ENVIRONMENT), os.environ.get(FORMER_VARIABLE))
