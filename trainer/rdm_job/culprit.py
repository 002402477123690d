# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the process that failed first, when the failure of one ends the others too. Pure functions.

The other failures are echoes: the processes lose their connections to the first, or launchers end them.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rdm_log.errors import without_prefix

LINES = 12
"""How many of the last lines of a process's errors are kept."""
GONE = "its process is gone, killed from outside or out of memory"
_EXITED = "it ended with exit code"
_TERMINATED = f"it was ended by {signal.SIGTERM.name}"
_TRACEBACK = "Traceback (most recent call last)"
_OTHERS = re.compile(r"\[rank\d+\]:")
# Lower-case parts of the errors that processes report when another one is gone.
_ECHOES = (
    *("connection", "peer", "gloo", "nccl", "timed out", "timeout", "broken pipe"),
    *("disterror", "distnetworkerror", "diststoreerror", "unreachable", "no route to host"),
    _TERMINATED.lower(),
)


@dataclass(frozen=True)
class Ended:
    """A process that failed.

    Attributes:
        node: Where.
        rank: Which.
        error: How, in one line.
        time: When, in seconds since 1970; when last seen alive, if the process could not record its end.
        lines: The last lines of its errors.
    """

    node: str
    rank: int
    error: str
    time: float
    lines: tuple[str, ...] = ()

    @classmethod
    def of(cls, node: str, entry: Mapping[str, Any]) -> Ended:
        """Return the process from its entry in a node's report."""
        return cls(
            node,
            int(entry["rank"]),
            str(entry["error"]),
            float(entry["time"]),
            tuple(map(str, entry["lines"])),
        )

    @property
    def is_echo(self) -> bool:
        """Whether it seems to have failed because another process did."""
        return any(word in self.error.lower() for word in _ECHOES)


def first(ended: Iterable[Ended], *, echoes: bool) -> Ended | None:
    """Return the process that failed first; None when there is none.

    Args:
        ended: All that have failed, on all nodes.
        echoes: Return an echo if all failures are echoes.
    """
    by_time = sorted(ended, key=lambda one: (one.time, one.rank))
    return next((one for one in by_time if not one.is_echo), by_time[0] if by_time and echoes else None)


def how_it_ended(code: int) -> str:
    """Return what an exit code means, whether -N or the shell's 128 + N for a signal; empty when it is 0."""
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
    """Return in one line how another program ended, with the cause if the end of its errors names it."""
    how = how_it_ended(code)
    if how.startswith(_EXITED):
        cause = _raised(errors) or next((line for line in reversed(errors) if line.strip()), "")
    elif how in ("", GONE, _TERMINATED):
        cause = ""
    else:
        # A library that aborts names the cause first; the C++ runtime then prints much more.
        cause = next((line for line in reversed(errors) if _OTHERS.match(line)), "")
    cause = without_prefix(cause)[0].strip()
    return f"{how}: {cause}" if cause else how


def _raised(errors: Sequence[str]) -> str:
    """Return the exception of the last traceback: libraries may write further lines while a process ends."""
    found, before, within = "", "", False
    for line in errors:
        text = without_prefix(line)[0]
        if text.startswith(_TRACEBACK):
            within = not before.startswith("Exception ignored in")
        elif within and text and not text[0].isspace():
            found, within = text, False
        before = text
    return found


def lines_of(rank: int, log: Sequence[str]) -> list[str]:
    """Return a process's last lines in its node's log, as far as they can be identified.

    torch prefixes the lines of a traceback with ``[rank3]:``. Without such lines of this rank, return those
    without a prefix; never those of other ranks.
    """
    own = [line for line in log if line.startswith(f"[rank{rank}]:")]
    nobodys = [line for line in log if line.strip() and not _OTHERS.match(line)]
    return (own or nobodys)[-LINES:]
