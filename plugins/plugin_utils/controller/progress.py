# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a task is that queries many hosts, as lines of Ansible's own output.

Ansible itself reports a task when it has ended. A line goes the way of every other event: through
ansible-runner to the program that shows the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 0.5
"""Seconds between two lines: each is an event, and costs about 2 ms of a processor."""
_ANSWERED = "answered: "


class Progress:
    """Prints the hosts that have answered.

    Args:
        display: prints a line.
        own: the task's own host, which Ansible reports itself.
    """

    def __init__(self, display: Callable[[str], None], own: str) -> None:
        self._display = display
        self._own = own
        self._names: list[str] = []
        self._next = 0.0

    def add(self, name: str) -> None:
        """Note a host, and print it with those before it when it is time to."""
        if name != self._own:
            self._names.append(name)
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Print the hosts that are not printed yet."""
        if self._names:
            self._display(_ANSWERED + ", ".join(self._names))
            self._names.clear()
            self._next = time.monotonic() + EVERY_S


def hosts_answered(line: str) -> list[str]:
    """Return the hosts of such a line, none of another."""
    return line.removeprefix(_ANSWERED).split(", ") if line.startswith(_ANSWERED) else []
