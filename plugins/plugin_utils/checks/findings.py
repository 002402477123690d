# SPDX-License-Identifier: GPL-3.0-or-later
"""What checks find."""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem


class Findings(NamedTuple):
    """Problems stop the run, warnings do not."""

    problems: list[Problem]
    warnings: list[Problem]

    def refuse(self, node: str, value: str, reason: str, hint: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(node, value, reason, hint))

    def warn(self, node: str, value: str, reason: str = "", hint: str = "") -> None:
        """Add a warning; a whole sentence is its only part."""
        self.warnings.append(Problem(node, value, reason, hint))
