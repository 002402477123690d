# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors that a user can cause. Each message is a sentence that names the value and what would work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdm_core.config.job import JobConfig

# Exit codes of rdm-trainer, with the same meaning as those of rdm-provision.
DONE = 0
FAILED = 1
BAD_INPUT = 3
STOPPED = 130


class TrainerError(Exception):
    """An error that the user can fix. The program prints the message and exits with ``exit_code``.

    Args:
        message: One sentence.
        exit_code: ``BAD_INPUT`` for errors in the input, found before the start; ``FAILED`` for later ones.
    """

    def __init__(self, message: str, *, exit_code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    @property
    def problems(self) -> tuple[str, ...]:
        """Every problem, each one sentence."""
        return (str(self),)


class ConfigError(TrainerError):
    """All problems of a job's configuration.

    Args:
        problems: One sentence each; at least one.
        source: The file's name, for the heading of several problems.
        rest: The configuration with the keys that fit their types, if any; other keys raise Unfit when read.
    """

    def __init__(
        self, problems: Sequence[str], *, source: str = "the configuration", rest: JobConfig | None = None
    ) -> None:
        self.rest = rest
        self._problems = tuple(problems)
        if len(self._problems) == 1:
            message = self._problems[0]
        else:
            lines = "".join(f"\n  - {problem}" for problem in self._problems)
            message = f"There are {len(self._problems)} problems in {source}:{lines}"
        super().__init__(message)

    @property
    def problems(self) -> tuple[str, ...]:
        """Every problem, each one sentence."""
        return self._problems


class Unfit(Exception):  # noqa: N818  # it is no error of the program
    """A key does not fit its type, so nothing that depends on it can be checked."""


def as_far_as_it_fits(problems: Iterator[str]) -> Iterator[str]:
    """Yield the problems that a check finds until it reads a key that does not fit its type."""
    with contextlib.suppress(Unfit):
        yield from problems


def divisors(number: int) -> str:
    """Return the divisors of a number for a sentence: ``1, 2 or 4``."""
    *first, last = [str(other) for other in range(1, number + 1) if number % other == 0]
    return f"{', '.join(first)} or {last}" if first else last
