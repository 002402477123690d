"""One HTML page of what jobs wrote.

The trainer's package ``rdm_log`` makes it. The collection carries that package, which needs neither torch nor
the trainer's others. It runs as a program of its own, so that neither side imports the other.
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
from rdm_provision.runner.lock import cluster_lock_module

MODULE = "rdm_log.report.write"
# Parts of a result about the network, and the key that is not empty where there are data.
_DATA_KEYS = {"fabric": "rtt_us", "rdma": "bandwidth_gbit", "plan": "nodes"}


def write(
    paths: Sequence[Path], output: Path, *, state: str = "", conf: Path | None = None
) -> dict[str, Any]:
    """Write the report of local paths, and return each job's verdict by its name.

    Args:
        paths: for each job its directory, one with ``NODE.out``, ``NODE.err`` and ``NODE.gpu``, a log, or a
            directory that :func:`write_parts` filled.
        output: the page; it is replaced.
        state: the scheduler's state of the job whose logs are read; empty if unknown.
        conf: a file with the requested settings, as ``KEY=VALUE`` lines.

    Raises:
        InputError: one of the paths has no output of a training, `conf` cannot be read, or the page cannot be
            written.
    """
    home = environment.collection() / "trainer"
    options = [f"--output={output}", f"--state={state}", *([f"--conf={conf}"] if conf else [])]
    command = [sys.executable, "-P", "-m", MODULE, *options, "--", *map(str, paths)]
    ended = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(home)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        printed = json.loads(ended.stdout)
    except ValueError:
        raise InputError(f"the report was not made: {MODULE} ended with {ended.returncode}") from None
    if not printed["ok"]:
        sentence = str(printed["problems"][0]).rstrip(".")
        if not sentence.startswith(tuple(map(str, (*paths, output, *([conf] if conf else []))))):
            sentence = sentence[:1].lower() + sentence[1:]
        raise InputError(sentence)
    verdicts: dict[str, Any] = printed["jobs"]
    return verdicts


def write_parts(
    folder: Path,
    parts: Sequence[Mapping[str, Any]],
    known: Mapping[str, Any] | None = None,
    missing: Sequence[str] = (),
) -> None:
    """Fill a directory with what the nodes reported of a job, for :func:`write`.

    Args:
        folder: is created; its name is the job's.
        parts: of each node, as :meth:`Cluster.report_parts` returns them.
        known: of the cluster, as :func:`last_known` returns it.
        missing: nodes that did not answer; the page and the verdict say so.
    """
    folder.mkdir()
    for number, part in enumerate(parts):
        (folder / f"{number:05d}.report.json").write_text(json.dumps(part), encoding="utf-8")
    if missing:
        (folder / "missing.json").write_text(json.dumps({"nodes": list(missing)}), encoding="utf-8")
    if known:
        (folder / "network.json").write_text(json.dumps(known), encoding="utf-8")


def last_known(home: Path) -> dict[str, dict[str, Any]]:
    """Return what the records of a cluster's runs have about its network, the newest of each.

    ``fabric`` is the table of the fabric, ``rdma`` what pairs measured over RDMA, ``plan`` the address plan.
    What no record has is left out.
    """
    runs = cluster_lock_module().state_folder(home) / "runs"
    found: dict[str, dict[str, Any]] = {}
    for record in sorted(runs.glob("*/result.json"), reverse=True):
        with contextlib.suppress(OSError, ValueError):
            result = json.loads(record.read_text(encoding="utf-8"))
            for key, data_key in _DATA_KEYS.items():
                if key not in found and (result.get(key) or {}).get(data_key):
                    found[key] = dict(result[key])
        if len(found) == len(_DATA_KEYS):
            break
    return found
