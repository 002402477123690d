# SPDX-License-Identifier: GPL-3.0-or-later
"""Standard error → what is wrong, without crying over warnings. Pure functions over lines."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rdm_log.messages import MESSAGES, UNKNOWN, Kind, Message

__all__ = ["Finding", "Findings", "classify", "findings", "without_prefix"]

_LONGEST = 4096
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# What launchers and torch put before a line: a node, a rank, or both.
_BEFORE = re.compile(
    r"^(?:\[(?:rank|(?P<local>default))?(?P<rank>\d+)\]: ?|\[\d+,(?P<mpi>\d+)\]<std\w+>: ?|(?P<srun>\d+): "
    # A node's name looks like a program's: it is one before what begins a line. So is its address.
    # So does an exception's.
    r"|(?:(?!(?:srun|slurmstepd|error|fatal|warning|socket\.timeout|(?:[a-z_]\w*\.)+[A-Z]\w*):)[a-z][\w.-]{0,62}|\d{1,3}(?:\.\d{1,3}){3}"
    r"|(?=[\da-f]*:[\da-f]*:)[\da-f:]{2,39}): (?=\[|  |Traceback"
    r"|(?:[a-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Warning)|Exception\b)|DEBUG|INFO|WARN|ERROR|CRITICAL|FATAL"
    r"|[IWEF]?\d{4}[ -]|(?:fatal|collect2|\S*/ld): |MIOpen\("
    r"|Error: |Fatal (?:Python )?error: |free\(\): "
    r"|KeyboardInterrupt|SystemExit|Killed$|\S+: line \d+: ))"
)
_TRACEBACK = "Traceback (most recent call last)"
_IGNORED = re.compile(r"^Exception ignored in")
# What Python writes of an exception, and programs before little else: not their WARNING, nor "Warning: ".
_RAISED = re.compile(r"^(?:[^\W\d]\w*\.)*(?!Warning:)[A-Z]\w*[a-z]\w*(?:: |:?$)")
# The same, of which a word in small letters may be one, and a node may stand before it.
_NAMED = re.compile(r"^(?:[\w.-]+: )?(?:[^\W\d]\w*\.)*[^\W\d]\w*(?:: |:?$)")
_EXCEPTION = next(message for message in MESSAGES if message.name == "exception")
_ENDED = next(message for message in MESSAGES if message.name == "exit-in-order")
_CUT = Message("traceback", "error", re.compile(re.escape(_TRACEBACK)), "a traceback was cut off")


@dataclass(frozen=True)
class Finding:
    """Lines that mean the same.

    Attributes:
        name: What they are about; see ``messages``.
        kind: ``error`` or ``warning``.
        cause: Why they are written, one clause.
        line: The first of them.
        count: How many there are.
        ranks: Which ranks wrote them, where they say it.
        node: On which node, where that is known.
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
        """Return the finding that plain data hold."""
        return cls(**{**data, "ranks": tuple(data["ranks"])})

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**dataclasses.asdict(self), "ranks": list(self.ranks)}


def classify(line: str) -> Message:
    """Return what a line means; ``UNKNOWN`` where nothing is known of it.

    >>> classify("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB").name
    'gpu-memory'
    """
    text, _ = without_prefix(line)
    return _of(text)


# Ranks and retries write the same line many times.
@functools.lru_cache(maxsize=4096)
def _of(text: str) -> Message:
    return next((message for message in MESSAGES if message.pattern.search(text)), UNKNOWN)


def without_prefix(line: str, first: int = 0) -> tuple[str, int | None]:
    """Return a line without colours and without what stands before it, and the rank that this names.

    Args:
        line: The line.
        first: The first rank of the node that wrote it: torchrun counts from there.
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
    """Return what is wrong, errors first, each kind of line once with its count; see ``Findings``.

    Args:
        lines: Of standard error, of any number of ranks.
    """
    found = Findings()
    for line in lines:
        found.add(line)
    found.end()
    return found.found()


def _is_raised(message: Message, text: str) -> bool:
    """Whether a line that ends a traceback is its exception, which the table does not know as an error.

    An exception may have any name, and is one also when Python was told to raise warnings (-W error).
    """
    if message.kind == "error" or message is _ENDED:
        return False
    return bool(_RAISED.match(text) or (message is UNKNOWN and _NAMED.match(text)))


class Findings:
    """What is wrong, from lines that come one after the other.

    Of a traceback only the exception counts, not the lines of code in it. One that Python ignored, as it does
    while a process ends, is none.

    Args:
        first: The first rank of their node, where that is known.
    """

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._found: dict[str, Finding] = {}
        # By rank, because their lines alternate: whether it is within a traceback, and whether that counts.
        self._within: dict[int | None, bool] = {}
        self._ignored: set[int | None] = set()
        # What ended a traceback, where nothing is known of it, nor has its line ended.
        self._cut: tuple[str, int | None] | None = None

    def add(self, line: str) -> None:
        """Take note of a line of standard error."""
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
            # What a warning quotes is the warning's.
            self._within[rank] = message is UNKNOWN or message.kind == "error"
        elif is_last and message is UNKNOWN and not line.endswith("\n"):
            self._cut = text, rank
        elif is_last and _is_raised(message, text):
            message = _EXCEPTION
        if message.kind != "noise" and counts:
            self._note(message, text, rank)

    def _end_cut(self) -> None:
        """Take note that the line that ended a traceback is whole: another one has come."""
        cut, self._cut = self._cut, None
        if cut is not None and _is_raised(UNKNOWN, cut[0]):
            self._note(_EXCEPTION, *cut)

    def end(self) -> None:
        """Take note that nothing comes any more: a traceback without its exception was cut off."""
        if self._cut is not None:
            self._note(_CUT, *self._cut)
        for rank, counts in self._within.items():
            if counts:
                self._note(_CUT, _TRACEBACK, rank)

    def skip(self) -> None:
        """Take note that lines are left out: how a traceback above them ended nobody knows."""
        self._cut = None
        self._within.clear()
        self._ignored.clear()

    def found(self) -> list[Finding]:
        """Return what has come so far, errors first, each kind of line once with its count."""
        return sorted(self._found.values(), key=lambda one: one.kind != "error")

    def _note(self, message: Message, text: str, rank: int | None) -> None:
        known = self._found.get(message.name)
        if known is None:
            told = () if rank is None else (rank,)
            self._found[message.name] = Finding(message.name, message.kind, message.cause, text, 1, told)
            return
        ranks = known.ranks
        if rank is not None and rank not in ranks:
            ranks = tuple(sorted((*ranks, rank)))
        self._found[message.name] = replace(known, count=known.count + 1, ranks=ranks)
