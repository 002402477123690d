# SPDX-License-Identifier: GPL-3.0-or-later
"""A job's directory on one of its two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdm_job.directory import JobDirectory
from tests.unit.job.two_nodes import REQUEST


@pytest.fixture
def job(tmp_path: Path) -> JobDirectory:
    made = JobDirectory(tmp_path / "gpt", "n1")
    made.make(REQUEST)
    return made
