# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide whether a launcher's program has the same version on all hosts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem

NEEDED_BY = {"pdsh": "deepspeed", "openmpi": "mpirun"}
"""The launcher that needs each program."""


def evaluate(name: str, found: Mapping[str, Mapping[str, Any]]) -> tuple[list[Problem], list[Problem]]:
    """Return the problems and the warnings about a program, from each host's `version` and `problem`."""
    launcher, hint = NEEDED_BY[name], f"install it, or set {name}_install: true"
    warnings = [
        Problem(host, "it", str(one["problem"]), f"for the launcher {launcher}, {hint}")
        for host, one in found.items()
        if one["problem"]
    ]
    by_version: dict[str, list[str]] = {}
    for host, one in found.items():
        if one["version"]:
            by_version.setdefault(str(one["version"]), []).append(host)
    most = max(by_version, key=lambda version: len(by_version[version]), default="")
    problems = [
        Problem(host, f"{name} {version}", f"is not {most}, as on {by_version[most][0]}", "install the same")
        for version, hosts in by_version.items()
        if version != most
        for host in hosts
    ]
    return problems, warnings
