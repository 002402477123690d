# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting for what processes do, however slow the machine is at the moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

__all__ = ["DEADLINE_S", "Begun", "Test", "begin", "wait_until"]

Test = Callable[[Any], Iterator[None]]
"""A test whose processes wait for a limit of the product at the ``yield``, and need nobody meanwhile."""
Begun = dict[Test, Iterator[None]]

DEADLINE_S = 600.0
"""Longer than anything takes on a busy machine; only what hangs is waited for so long."""
_RESTS = 3.0
"""A pause is this many times as long as the check before it. Checks that start programs would otherwise take
a processor from what they wait for."""
_LEAST_S, _MOST_S = 0.05, 5.0

Seen = TypeVar("Seen")


def wait_until(
    what: str,
    observe: Callable[[], Seen],
    accept: Callable[[Seen], object] = bool,
    *,
    timeout: float = DEADLINE_S,
    pause: Callable[[], object] | None = None,
    why: Callable[[], object] | None = None,
) -> Seen:
    """Observe again and again until what is seen is accepted.

    Args:
        what: The condition, for the message.
        observe: Returns what is seen.
        accept: Whether that is it.
        timeout: Seconds to wait at most.
        pause: What to do between two checks; default: rest, the longer the more a check takes.
        why: Returns what may be the reason, such as a log, for the message; called only when the time is up.

    Raises:
        AssertionError: The time is up; the message has what was seen last.
    """
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        if accept(seen := observe()):
            return seen
        ended = time.monotonic()
        if ended >= deadline:
            more = f"; {why()}" if why else ""
            raise AssertionError(f"waited {timeout:.0f} s in vain until {what}; last seen: {seen!r}{more}")
        if pause is None:
            time.sleep(min(max(_LEAST_S, _RESTS * (ended - began)), _MOST_S))
        else:
            pause()


def begin(tests: Iterable[Test], make: Callable[[], object]) -> Begun:
    """Run tests up to their ``yield``, so that others run while they wait."""
    begun = {test: test(make()) for test in tests}
    for rest in begun.values():
        next(rest)
    return begun
