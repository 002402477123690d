# SPDX-License-Identifier: GPL-3.0-or-later
"""Find and end the processes that start a lab, also those that an interrupted start left running."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from ansible_collections.rdm.provision.rdm_lab.files import Files
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem

END_TIMEOUT_S = 60.0
POLL_S = 0.05


def mark(name: str) -> dict[str, str]:
    """Return the environment variable of all processes that start this lab, by which `lab down` ends them."""
    return {"RDM_LAB_UP": f"{os.environ.get('DOCKER_HOST', '')}/{name}"}


def marked_processes(name: str) -> list[int]:
    """Return the processes that an interrupted start of this lab left running."""
    (wanted,) = ("=".join(item).encode() for item in mark(name).items())
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended, or belongs to another user
    return found


def starting(name: str, all_files: Iterable[Files]) -> set[int]:
    """Return the processes that start this lab, whether of rdm-provision or of ansible-playbook alone."""
    return {*marked_processes(name), *(pid for files in all_files for pid in files.makers())}


def end_interrupted_start(name: str, all_files: Iterable[Files]) -> bool:
    """End the processes of an interrupted start of this lab; return whether there were any."""
    deadline = time.monotonic() + END_TIMEOUT_S
    found = starting(name, all_files)
    had = bool(found)
    while found:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise LabProblem(
                f"another start of lab {name!r} does not end: processes {', '.join(map(str, sorted(found)))}"
            )
        time.sleep(POLL_S)
        found = starting(name, all_files)
    return had
