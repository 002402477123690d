"""Names of the labs that tests make: a checkout's own, and the same in each of its runs."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from ansible_collections.rdm.provision.rdm_lab.interrupted_start import marked_processes

ROOT = Path(__file__).resolve().parent.parent


def lab_name(kind: str, checkout: Path = ROOT) -> str:
    """Return a name for a lab of this checkout's tests.

    A run finds by it what a killed one has left. Another checkout has other names: its tests may use this
    machine's engine at the same time.
    """
    return f"{kind}-{hashlib.sha256(str(checkout).encode()).hexdigest()[:8]}"


def engine_answers() -> bool:
    """Whether this machine's engine runs; where it does not, the first lab starts it."""
    return subprocess.run(["docker", "version"], capture_output=True, timeout=600).returncode == 0


def left_over(name: str) -> list[str]:
    """Return what there is of a lab, whole or of a killed start: objects of the engine, processes."""
    if not engine_answers():
        return []
    mine = ["--quiet", "--filter", f"label=rdm.provision.lab={name}"]
    found = [str(process) for process in marked_processes(name)]
    for kind in (["ps", "--all"], ["volume", "ls"], ["network", "ls"]):
        done = subprocess.run(["docker", *kind, *mine], check=True, capture_output=True, text=True)
        found += done.stdout.split()
    return found
