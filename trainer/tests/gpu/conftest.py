# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests on a machine with an NVIDIA GPU, run by hand: ``make test-gpu``."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each of them, so that no test here can be forgotten; elsewhere they are deselected.

    Those of records come first: they wait for an idle GPU, which it never is once another test has used it in
    this process.
    """
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
    items.sort(
        key=lambda item: item.path.name != "test_records.py" and Path(__file__).parent in item.path.parents
    )
