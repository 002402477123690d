# SPDX-License-Identifier: GPL-3.0-or-later
"""Hooks and settings of all tests."""

from __future__ import annotations

import gc

import pytest
from hypothesis import HealthCheck, settings

from tests.temporary import pytest_configure, pytest_sessionfinish, pytest_terminal_summary

__all__ = ["pytest_collection_finish", "pytest_configure", "pytest_sessionfinish", "pytest_terminal_summary"]

# A slow machine is no failure. Each run draws other examples.
settings.register_profile(
    "any-machine", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude tests and their imports, which stay until the end, from garbage collection."""
    gc.freeze()
    gc.set_threshold(10_000)
