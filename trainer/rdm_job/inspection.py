# SPDX-License-Identifier: GPL-3.0-or-later
"""The workload's own precondition checks on this node, before anything starts.

The workload's module runs in a separate process, because agents import no workload. It reads one JSON object
with ``config`` (YAML), ``overrides`` and ``jobs`` (the directory of all jobs here), and prints a JSON list of
sentences.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

from rdm_core.config import JobConfig, workload_of
from rdm_job.directory import jobs_root


def problems(text: str, overrides: Sequence[str], config: JobConfig) -> Iterator[str]:
    """Yield the problems, one sentence each.

    Args:
        text: The job's YAML.
        overrides: The overrides of it.
        config: The parsed configuration, as far as it is valid.
    """
    module = workload_of(config).inspect(config)
    if not module:
        return
    # Through stdin, not as an argument: it may hold secrets.
    job = json.dumps({"config": text, "overrides": [*overrides], "jobs": str(jobs_root())})
    done = subprocess.run(  # a list, and no shell
        [sys.executable, "-m", module], input=job, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield f"What the job needs here cannot be checked: {last}"
        return
    yield from json.loads(done.stdout)
