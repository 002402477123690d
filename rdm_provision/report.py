"""One HTML page of what jobs wrote. The collection carries the part of the trainer that knows logs.

That part needs neither torch nor the trainer's other packages. It is run as a program of its own, so that the
two sides import nothing of each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rdm_provision import environment
from rdm_provision.errors import InputError
from rdm_provision.lock import cluster_lock_module

__all__ = ["last_fabric", "write", "write_parts"]

MODULE = "rdm_log.report.write"


def write(paths: Sequence[Path], output: Path) -> dict[str, Any]:
    """Write the report of some paths here, and return each job's verdict by its name.

    Args:
        paths: of each job its directory, one with ``NODE.out``, ``NODE.err`` and ``NODE.gpu``, one log, or a
            directory that :func:`write_parts` filled.
        output: the page; it is replaced.

    Raises:
        InputError: there is nothing of a training in one of the paths, or the page cannot be written.
    """
    home = environment.collection() / "trainer"
    command = [sys.executable, "-P", "-m", MODULE, "--output", str(output), "--", *map(str, paths)]
    ended = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(home)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        said = json.loads(ended.stdout)
    except ValueError:
        raise InputError(f"the report was not made: {MODULE} ended with {ended.returncode}") from None
    if not said["ok"]:
        first, *_ = said["problems"]
        raise InputError(str(first)[:1].lower() + str(first)[1:].rstrip("."))
    verdicts: dict[str, Any] = said["jobs"]
    return verdicts


def write_parts(
    folder: Path, parts: Sequence[Mapping[str, Any]], fabric: Mapping[str, Any] | None = None
) -> None:
    """Fill a directory with what the nodes of a job told, for :func:`write`.

    Args:
        folder: its name is the job's; it is made.
        parts: of each node, as :meth:`Cluster.report_parts` returns them.
        fabric: the table of the fabric, where it is known.
    """
    folder.mkdir()
    for number, part in enumerate(parts):
        (folder / f"{number:05d}.report.json").write_text(json.dumps(part), encoding="utf-8")
    if fabric is not None:
        (folder / "fabric.json").write_text(json.dumps(fabric), encoding="utf-8")


def last_fabric(home: Path) -> dict[str, Any] | None:
    """Return the newest table of the fabric among the records of a cluster's runs, None if there is none."""
    runs = cluster_lock_module().state_folder(home) / "runs"
    for record in sorted(runs.glob("*/result.json"), reverse=True):
        with contextlib.suppress(OSError, ValueError):
            fabric = json.loads(record.read_text(encoding="utf-8")).get("fabric")
            if fabric and fabric.get("rtt_us"):
                return dict(fabric)
    return None
