# SPDX-License-Identifier: GPL-3.0-or-later
"""Progress of a task that queries many hosts, as lines of Ansible's output.

Ansible reports a task only when it has ended. Lines reach the program that shows the run like every other
event, through ansible-runner.
"""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 0.5
"""Seconds between two lines: each is an event, and costs about 2 ms of CPU time."""
_ANSWERED = "answered: "


class Progress:
    """Prints the hosts that have answered."""

    def __init__(self, display: Callable[[str], None], own: str) -> None:
        self._display = display
        self._own = own
        self._names: list[str] = []
        self._next = 0.0

    def add(self, name: str) -> None:
        """Add a host, and print the pending hosts if it is time."""
        if name != self._own:
            self._names.append(name)
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Print the pending hosts."""
        if self._names:
            self._display(_ANSWERED + ", ".join(self._names))
            self._names.clear()
            self._next = time.monotonic() + EVERY_S


def hosts_answered(line: str) -> list[str]:
    """Return the hosts of such a line; none for another line."""
    return line.removeprefix(_ANSWERED).split(", ") if line.startswith(_ANSWERED) else []
