# SPDX-License-Identifier: GPL-3.0-or-later
"""Standard error → findings, with warnings kept apart from errors. Pure functions over lines."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rdm_log.messages import MESSAGES, UNKNOWN, Kind, Message

_LONGEST = 4096
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# What launchers and torch put before a line: a node name, a rank, or both.
_BEFORE = re.compile(
    r"^(?:\[(?:rank|(?P<local>default))?(?P<rank>\d+)\]: ?|\[\d+,(?P<mpi>\d+)\]<std\w+>: ?|(?P<srun>\d+): "
    # A node's name or address looks like the name of a program or of an exception. It counts as a node only
    # where the beginning of a usual line follows it.
    r"|(?:(?!(?:srun|slurmstepd|error|fatal|warning|socket\.timeout|(?:[a-z_]\w*\.)+[A-Z]\w*):)[a-z][\w.-]{0,62}|\d{1,3}(?:\.\d{1,3}){3}"
    r"|(?=[\da-f]*:[\da-f]*:)[\da-f:]{2,39}): (?=\[|  |Traceback"
    r"|(?:[a-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Warning)|Exception\b)|DEBUG|INFO|WARN|ERROR|CRITICAL|FATAL"
    r"|[IWEF]?\d{4}[ -]|(?:fatal|collect2|\S*/ld): |MIOpen\("
    r"|Error: |Fatal (?:Python )?error: |free\(\): "
    r"|KeyboardInterrupt|SystemExit|Killed$|\S+: line \d+: ))"
)
_TRACEBACK = "Traceback (most recent call last)"
_IGNORED = re.compile(r"^Exception ignored in")
# How Python prints an exception. Few other lines begin like this; WARNING and "Warning: " do not match.
_RAISED = re.compile(r"^(?:[^\W\d]\w*\.)*(?!Warning:)[A-Z]\w*[a-z]\w*(?:: |:?$)")
# The same, but the name may be in lower case, and a node's name may stand before it.
_NAMED = re.compile(r"^(?:[\w.-]+: )?(?:[^\W\d]\w*\.)*[^\W\d]\w*(?:: |:?$)")
_EXCEPTION = next(message for message in MESSAGES if message.name == "exception")
_ENDED = next(message for message in MESSAGES if message.name == "exit-in-order")
_CUT = Message("traceback", "error", re.compile(re.escape(_TRACEBACK)), "a traceback was cut off")


@dataclass(frozen=True)
class Finding:
    """Lines with the same meaning.

    Attributes:
        name: The name of the message; see ``messages``.
        kind: ``error`` or ``warning``.
        cause: Why the lines are written, one clause.
        line: The first line.
        count: The number of lines.
        ranks: The ranks that wrote them, where the lines name a rank.
        node: The node, where it is known.
    """

    name: str
    kind: Kind
    cause: str
    line: str
    count: int = 1
    ranks: tuple[int, ...] = ()
    node: str = ""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Finding:
        """Return the finding in plain data."""
        return cls(**{**data, "ranks": tuple(data["ranks"])})

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**dataclasses.asdict(self), "ranks": list(self.ranks)}


# Ranks and retries write the same line many times.
@functools.lru_cache(maxsize=4096)
def _of(text: str) -> Message:
    """Return the message that a line without prefixes matches, or ``UNKNOWN``."""
    return next((message for message in MESSAGES if message.pattern.search(text)), UNKNOWN)


def without_prefix(line: str, first: int = 0) -> tuple[str, int | None]:
    """Return a line without colours and launchers' prefixes, and the rank that a prefix names.

    Args:
        line: The line.
        first: The first rank of the node that wrote it, to which torchrun's local ranks are added.
    """
    text = _COLOURS.sub("", line[:_LONGEST]).rstrip()
    rank = None
    while match := _BEFORE.match(text):
        if not match[0]:
            break
        number = match["rank"] or match["mpi"] or match["srun"]
        if number:
            rank = int(number) + (first if match["local"] else 0)
        text = text[match.end() :]
    return text, rank


def findings(lines: Iterable[str]) -> list[Finding]:
    """Return the findings, errors first, each message once with its count; see ``Findings``.

    Args:
        lines: Standard error of any number of ranks.
    """
    found = Findings()
    for line in lines:
        found.add(line)
    found.end()
    return found.found()


def _is_raised(message: Message, text: str) -> bool:
    """Whether the line after a traceback is an exception that the table does not list as an error.

    An exception may have any name; with ``-W error`` it may even be a warning's.
    """
    if message.kind == "error" or message is _ENDED:
        return False
    return bool(_RAISED.match(text) or (message is UNKNOWN and _NAMED.match(text)))


class Findings:
    """Collects findings from lines, one after the other.

    In a traceback only the exception counts, not the lines of code. A traceback below Python's "Exception
    ignored in", usual while a process ends, does not count.

    Args:
        first: The first rank of the node, where it is known.
    """

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._found: dict[str, Finding] = {}
        # Ranks within a traceback, and whether it counts. By rank, because the lines of ranks alternate.
        self._within: dict[int | None, bool] = {}
        self._ignored: set[int | None] = set()
        # An unknown line after a traceback that has no newline yet: it may be cut.
        self._cut: tuple[str, int | None] | None = None

    def add(self, line: str) -> None:
        """Add a line of standard error."""
        text, rank = without_prefix(line, self._first)
        if not text:
            return
        self._end_cut()
        if _IGNORED.match(text):
            self._ignored.add(rank)
            return
        if text.startswith(_TRACEBACK):
            self._within[rank] = rank not in self._ignored
            self._ignored.discard(rank)
            return
        if rank in self._within and text[0] in " \t":
            return
        is_last = self._within.get(rank, False)
        counts = self._within.pop(rank, True)
        message = _of(text)
        if _TRACEBACK in text:
            # A traceback that a warning quotes is part of the warning.
            self._within[rank] = message is UNKNOWN or message.kind == "error"
        elif is_last and message is UNKNOWN and not line.endswith("\n"):
            self._cut = text, rank
        elif is_last and _is_raised(message, text):
            message = _EXCEPTION
        if message.kind != "noise" and counts:
            self._note(message, text, rank)

    def _end_cut(self) -> None:
        """Count the pending line after a traceback as whole, since another line follows."""
        cut, self._cut = self._cut, None
        if cut is not None and _is_raised(UNKNOWN, cut[0]):
            self._note(_EXCEPTION, *cut)

    def end(self) -> None:
        """End the input: a traceback without its exception was cut off."""
        if self._cut is not None:
            self._note(_CUT, *self._cut)
        for rank, counts in self._within.items():
            if counts:
                self._note(_CUT, _TRACEBACK, rank)

    def skip(self) -> None:
        """Mark a gap in the lines: the end of a traceback above it is unknown."""
        self._cut = None
        self._within.clear()
        self._ignored.clear()

    def found(self) -> list[Finding]:
        """Return the findings so far, errors first, each message once with its count."""
        return sorted(self._found.values(), key=lambda one: one.kind != "error")

    def _note(self, message: Message, text: str, rank: int | None) -> None:
        known = self._found.get(message.name)
        if known is None:
            line_ranks = () if rank is None else (rank,)
            self._found[message.name] = Finding(
                message.name, message.kind, message.cause, text, 1, line_ranks
            )
            return
        ranks = known.ranks
        if rank is not None and rank not in ranks:
            ranks = tuple(sorted((*ranks, rank)))
        self._found[message.name] = replace(known, count=known.count + 1, ranks=ranks)
