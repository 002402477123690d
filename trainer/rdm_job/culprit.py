# SPDX-License-Identifier: GPL-3.0-or-later
"""Which process failed first, of all that end when one does. Pure functions.

The others' ends are its echo: their connections to it break, and launchers end them.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rdm_log.errors import without_prefix

__all__ = ["GONE", "LINES", "Ended", "first", "how_it_ended", "lines_of", "why_it_ended"]

LINES = 12
"""How many lines of its errors are kept of a process."""
GONE = "its process is gone, killed from outside or out of memory"
_EXITED = "it ended with exit code"
_TERMINATED = f"it was ended by {signal.SIGTERM.name}"
_TRACEBACK = "Traceback (most recent call last)"
_OTHERS = re.compile(r"\[rank\d+\]:")
# What processes say when another one has gone, in small letters.
_ECHOES = (
    *("connection", "peer", "gloo", "nccl", "timed out", "timeout", "broken pipe"),
    *("disterror", "distnetworkerror", "diststoreerror", "unreachable", "no route to host"),
    _TERMINATED.lower(),
)


@dataclass(frozen=True)
class Ended:
    """A process that ended, and not in order.

    Attributes:
        node: Where.
        rank: Which.
        error: How, in one line.
        time: When, in seconds since 1970; of a process that could not say it, when it was last seen alive.
        lines: The last lines of its errors.
    """

    node: str
    rank: int
    error: str
    time: float
    lines: tuple[str, ...] = ()

    @classmethod
    def of(cls, node: str, said: Mapping[str, Any]) -> Ended:
        """Return the process that a node's report tells of."""
        return cls(
            node, int(said["rank"]), str(said["error"]), float(said["time"]), tuple(map(str, said["lines"]))
        )

    @property
    def is_echo(self) -> bool:
        """Whether it seems to have ended because another one had."""
        return any(word in self.error.lower() for word in _ECHOES)


def first(ended: Iterable[Ended], *, echoes: bool) -> Ended | None:
    """Return the process that ended first; None when there is none.

    Args:
        ended: All that have ended, on all nodes.
        echoes: Take an echo when there is nothing else.
    """
    by_time = sorted(ended, key=lambda one: (one.time, one.rank))
    return next((one for one in by_time if not one.is_echo), by_time[0] if by_time and echoes else None)


def how_it_ended(code: int) -> str:
    """Return what an exit code says, of a process or of the shell's kind; empty when it is 0."""
    number = -code if code < 0 else code - 128
    if code == 0:
        return ""
    if number == signal.SIGKILL:
        return GONE
    try:
        return f"it was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"{_EXITED} {code}"


def why_it_ended(code: int, errors: Sequence[str]) -> str:
    """Say in one line how another program ended, as far as the last lines of its own errors tell.

    Args:
        code: Its exit code.
        errors: What it wrote, and nobody else.
    """
    how = how_it_ended(code)
    if how.startswith(_EXITED):
        said = _raised(errors) or next((line for line in reversed(errors) if line.strip()), "")
    elif how in ("", GONE, _TERMINATED):
        said = ""
    else:
        # A library that aborts says why, and after it a C++ runtime much more.
        said = next((line for line in reversed(errors) if _OTHERS.match(line)), "")
    said = without_prefix(said)[0].strip()
    return f"{how}: {said}" if said else how


def _raised(errors: Sequence[str]) -> str:
    """Return the exception that ends the last traceback: libraries go on writing while a process ends."""
    found, before, within = "", "", False
    for line in errors:
        said = without_prefix(line)[0]
        if said.startswith(_TRACEBACK):
            within = not before.startswith("Exception ignored in")
        elif within and said and not said[0].isspace():
            found, within = said, False
        before = said
    return found


def lines_of(rank: int, log: Sequence[str]) -> list[str]:
    """Return the last lines that a process wrote into its node's log, as far as they can be told.

    torch begins the lines of a traceback with ``[rank3]:``; others' are left out in any case.
    """
    own = [line for line in log if line.startswith(f"[rank{rank}]:")]
    nobodys = [line for line in log if line.strip() and not _OTHERS.match(line)]
    return (own or nobodys)[-LINES:]
