# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests on a machine with an NVIDIA GPU, run by hand: ``make test-gpu``."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each of them, so that no test here can be forgotten; elsewhere they are deselected."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
