"""What can go wrong before a run begins, and the exit codes. Each error's text is one clear sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem

DONE = 0
"""Exit code: everything is done."""
FAILED = 1
"""Exit code: a node failed or could not be reached."""
REFUSED = 2
"""Exit code: the nodes do not allow it; nothing was changed."""
BAD_INPUT = 3
"""Exit code: the inventory or the command line is wrong; nothing was changed."""
CANCELLED = 130
"""Exit code: stopped by the user, as shells report Ctrl-C."""


class RdmError(Exception):
    """Base of this package's errors.

    Args:
        message: what is wrong, in one sentence.

    Attributes:
        exit_code: what the command-line program exits with.
        problems: each problem, if there are several.
        warnings: found with the problems, and perhaps their cause.
        hint: what to try, in one line; may be empty.
    """

    exit_code = FAILED

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        problems: Sequence[Problem] = (),
        warnings: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)


class InputError(RdmError):
    """A value that the caller gave (an option, a limit, a node's name) cannot be used."""

    exit_code = BAD_INPUT


class InventoryError(RdmError):
    """The inventory is missing, cannot be read, or describes no sound cluster."""

    exit_code = BAD_INPUT


class ClusterBusyError(RdmError):
    """Another run is working on the same cluster."""

    exit_code = REFUSED


class ToolMissingError(RdmError):
    """A program that a run needs on this machine is missing."""

    exit_code = BAD_INPUT
