# SPDX-License-Identifier: GPL-3.0-or-later
"""What checks find."""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem


class Findings(NamedTuple):
    """Problems stop the run, warnings do not."""

    problems: list[Problem]
    warnings: list[Problem]

    def warn(self, node: str, text: str) -> None:
        """Add a warning, a whole sentence."""
        self.warnings.append(Problem(node, "", text, ""))
