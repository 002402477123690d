# SPDX-License-Identifier: GPL-3.0-or-later
"""Precondition failures: their problems and their messages.

A run is refused before anything has changed. The failure has every problem of every node, each with the node,
the invalid value, the reason and the hint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names


class Problem(NamedTuple):
    """One reason to refuse or to warn.

    Attributes:
        node: inventory name of the node; None for the whole cluster.
        value: the invalid value, as the user wrote it or as the node reports it.
        reason: what is wrong with the value; continues the sentence that the value begins.
        hint: what would work instead, in the imperative.
    """

    node: str | None
    value: str
    reason: str
    hint: str

    @classmethod
    def from_result(cls, data: Mapping[str, Any]) -> Problem:
        """Return the problem that a task's result has.

        A collection of another release may have written it: unknown keys are ignored, and missing ones are
        empty.
        """
        return cls(data.get("node"), *(str(data.get(key) or "") for key in cls._fields[1:]))

    @classmethod
    def of(cls, node: str | None, value: str, error: Exception) -> Problem:
        """Return the problem that an error about a variable describes.

        Args:
            node: inventory name of the node; None for the whole cluster.
            value: the invalid value; empty if the error names it.
            error: ``reason`` or ``reason; hint``.
        """
        reason, _, hint = str(error).partition("; ")
        return cls(node, value, reason, hint or "correct it in the inventory")

    @property
    def sentence(self) -> str:
        """The problem without its node: value, reason and hint in one sentence."""
        what = " ".join(part for part in (self.value, self.reason) if part)
        return f"{what}: {self.hint}" if self.hint else what

    def __str__(self) -> str:
        """The problem as one sentence: ``node: value reason: hint``."""
        return f"{self.node}: {self.sentence}" if self.node else self.sentence


class PreconditionFailed(Exception):  # noqa: N818
    """Raised instead of a change, with every problem that was found.

    Attributes:
        problems: the problems, in the order in which they were found.
        warnings: what else was found, and may be the cause.
    """

    def __init__(
        self,
        problems: Iterable[Problem],
        before: str = "anything was changed",
        warnings: Iterable[str] = (),
    ) -> None:
        self.problems: list[Problem] = list(problems)
        self.warnings: list[str] = list(warnings)
        super().__init__(report(self.problems, before))

    def result(self, stage: str) -> dict[str, Any]:
        """Return the result of an action that refuses.

        Args:
            stage: ``inventory`` or ``nodes``.
        """
        result = {
            "failed": True,
            "changed": False,
            "rdm_refused": stage,
            "problems": [problem._asdict() for problem in self.problems],
            "msg": str(self),
        }
        return {**result, "warnings": self.warnings} if self.warnings else result


def sentences(problems: Iterable[Problem]) -> list[str]:
    """Return one line for each distinct problem; nodes that share a problem share its line."""
    nodes: dict[tuple[bool, str], list[str]] = {}
    for problem in problems:
        sharing = nodes.setdefault((problem.node is None, problem.sentence), [])
        if problem.node is not None:
            sharing.append(problem.node)
    return [f"{names(who)}: {sentence}" if who else sentence for (_, sentence), who in nodes.items()]


def dry_run(problems: Iterable[Problem]) -> list[str]:
    """Return the problems as warnings of a run that changes nothing, and so refuses nothing."""
    return [f"This would be refused: {line}" for line in sentences(problems)]


def report(problems: Sequence[Problem], before: str = "anything was changed") -> str:
    """Return the message that lists all problems."""
    lines = sentences(problems)
    count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    head = f"Refused before {before}, because of {count}:"
    return "\n".join([head, *(f"- {line}" for line in lines)])
