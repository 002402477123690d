# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions of what must be the same on all nodes of a job."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform

__all__ = ["versions"]

_OWN = ("rdm-trainer",)
_OF_TRAINING = ("torch", "deepspeed")


def versions(*, training: bool = True) -> dict[str, str]:
    """Return the versions of this node, without those of packages that it does not have.

    Of Python it is the major and the minor one: what nodes exchange does not change with the patch level.

    Args:
        training: Also of the packages that train; a program of the user's may use none of them.
    """
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for package in (*(_OF_TRAINING if training else ()), *_OWN):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
