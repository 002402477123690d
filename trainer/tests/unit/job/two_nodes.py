# SPDX-License-Identifier: GPL-3.0-or-later
"""A job on two nodes with two processes each, for tests of reports about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rdm_core import config as configuration
from rdm_core.config import Config
from rdm_job.protocol import Node, Offer, Request, State

REQUEST = Request(
    "gpt", "n1", (Node("n1", "127.0.0.1", 2), Node("n2", "127.0.0.2", 2)), offer=Offer(mark="x")
)
STATE = State(job="gpt", state="running", started=1.0)


def config(tmp_path: Path, **more: Any) -> Config:
    """Return the job's configuration with some sections."""
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({"name": "gpt", **more}))
    return configuration.load(path)
