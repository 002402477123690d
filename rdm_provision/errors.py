"""What can go wrong before a run begins. Each error's text is one clear sentence for the user."""

from __future__ import annotations

from collections.abc import Sequence

from rdm_provision.events import BAD_INPUT, FAILED, REFUSED, Problem

__all__ = ["ClusterBusyError", "InputError", "InventoryError", "RdmError", "ToolMissingError"]


class RdmError(Exception):
    """Base of this package's errors.

    Args:
        message: what is wrong, in one sentence.

    Attributes:
        exit_code: what the command-line program exits with.
        problems: the single problems, when there are several.
        warnings: what was found beside them, and may be why there are any.
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
