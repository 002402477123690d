# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting for conditions, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

__all__ = ["DEADLINE_S", "Begun", "Test", "begin", "wait_until"]

Test = Callable[[Any], Iterator[None]]
"""A test whose processes wait for a timeout of the product at its ``yield``."""
Begun = dict[Test, Iterator[None]]

DEADLINE_S = 600.0
"""Longer than anything takes on a busy machine; only a hang reaches it."""
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
    """Observe repeatedly until the observation is accepted.

    Args:
        what: The condition, for the message.
        observe: Returns the observation.
        accept: Whether the condition is met.
        timeout: Seconds to wait at most.
        pause: What to do between two checks; by default, sleep in proportion to the check's time.
        why: Returns a possible reason, such as a log, for the message; called only on a timeout.

    Raises:
        AssertionError: It timed out; the message has the last observation.
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
