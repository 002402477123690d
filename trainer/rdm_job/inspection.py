# SPDX-License-Identifier: GPL-3.0-or-later
"""What a job's workload finds wrong on this node, before anything starts.

Its own module looks, in a process of its own: agents import no workload. It reads one JSON object, ``config``
(YAML), ``overrides`` and ``jobs`` (the directory of all jobs here), and prints a list of sentences.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

from rdm_core.config import JobConfig, workload_of
from rdm_job.directory import jobs_root

__all__ = ["problems"]


def problems(text: str, overrides: Sequence[str], config: JobConfig) -> Iterator[str]:
    """Yield what is wrong, one sentence each.

    Args:
        text: The job's YAML.
        overrides: What goes over it.
        config: What it says, as far as that is sound.
    """
    module = workload_of(config).inspect(config)
    if not module:
        return
    # It may hold secrets, so it is no argument.
    job = json.dumps({"config": text, "overrides": [*overrides], "jobs": str(jobs_root())})
    done = subprocess.run(  # a list, and no shell
        [sys.executable, "-m", module], input=job, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield f"What the job needs here cannot be looked at: {last}"
        return
    yield from json.loads(done.stdout)
