# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting for what processes do, however slow the machine is at the moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["DEADLINE_S", "wait_until"]

DEADLINE_S = 240.0
"""Longer than anything takes on a busy machine; only what hangs is waited for so long."""

Seen = TypeVar("Seen")


def wait_until(
    what: str,
    look: Callable[[], Seen],
    accept: Callable[[Seen], object] = bool,
    *,
    timeout: float = DEADLINE_S,
    pause: Callable[[], object] = lambda: time.sleep(0.05),
) -> Seen:
    """Look again and again until what is seen is accepted.

    Args:
        what: The condition, for the message.
        look: Looks.
        accept: Whether that is it.
        timeout: Seconds to wait at most.
        pause: What to do between two looks.

    Returns:
        What was accepted.

    Raises:
        AssertionError: The time is up; the message has what was seen last.
    """
    deadline = time.monotonic() + timeout
    while not accept(seen := look()):
        assert time.monotonic() < deadline, (
            f"waited {timeout:.0f} s in vain until {what}; last seen: {seen!r}"
        )
        pause()
    return seen
