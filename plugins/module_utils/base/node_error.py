# SPDX-License-Identifier: GPL-3.0-or-later
"""Why something cannot be done on a node.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

from typing import Any


class NodeError(Exception):
    """Something cannot be done, often because of the node's state.

    Args:
        text: one sentence for the user.
        hint: what would work, in the imperative; may be empty.
        result: what else the module returns when it fails.
    """

    def __init__(self, text: str, hint: str = "", **result: Any) -> None:
        super().__init__(text)
        self.hint = hint
        self.result = result

    @property
    def sentence(self) -> str:
        """The text and its hint as one sentence, for a task that fails."""
        return "{0}: {1}".format(self, self.hint) if self.hint else str(self)
