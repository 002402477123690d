# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a task is that asks many hosts, for the program that has started ansible-playbook.

Ansible itself tells of a task when it has ended.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

DIRECTORY = "RDM_ANSWERED"
"""The environment variable that names a directory; each such task writes a file there, called as its uuid."""


@contextlib.contextmanager
def progress_reports(task: str) -> Iterator[Callable[[str], None]]:
    """Give what is to be told the name of each host that has answered.

    Args:
        task: uuid of the task.
    """
    with contextlib.ExitStack() as stack:
        stream = None
        if directory := os.environ.get(DIRECTORY):
            with contextlib.suppress(OSError):
                stream = stack.enter_context(open(Path(directory, task), "w", encoding="utf-8", buffering=1))

        def report_done(name: str) -> None:
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.write(f"{name}\n")

        yield report_done


def hosts_done(directory: Path, task: str) -> list[str]:
    """Return the hosts that have answered so far."""
    with contextlib.suppress(OSError):
        text = (directory / task).read_text(encoding="utf-8")
        return text[: text.rfind("\n") + 1].splitlines()
    return []
