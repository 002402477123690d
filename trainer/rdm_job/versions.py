# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions that must match on all nodes of a job."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform

_OWN = ("rdm-trainer",)
_OF_TRAINING = ("torch", "deepspeed")


def versions(*, training: bool = True) -> dict[str, str]:
    """Return the versions of Python and of the packages installed on this node.

    Python's is the major and minor version only: the patch level does not change what nodes exchange.

    Args:
        training: Include torch and DeepSpeed, which a user's own program may not use.
    """
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for package in (*(_OF_TRAINING if training else ()), *_OWN):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
