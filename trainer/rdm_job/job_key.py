# SPDX-License-Identifier: GPL-3.0-or-later
"""The secret that the agents of a job share, and nobody else has."""

from __future__ import annotations

import hmac
import os
from pathlib import Path

_CLUSTER_KEY = Path("/etc/rdm/ssh/id_ed25519")
"""The key that all containers of a cluster share and nobody else has. ``RDM_CLUSTER_KEY`` names another."""


def job_key(job: str) -> bytes:
    """Return the key of a job's agents, derived from what the cluster's containers share.

    Raises:
        OSError: This container has no such key.
    """
    shared = Path(os.environ.get("RDM_CLUSTER_KEY") or _CLUSTER_KEY).read_bytes()
    return hmac.digest(shared, f"rdm-job {job}".encode(), "sha256")
