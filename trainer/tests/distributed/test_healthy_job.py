# SPDX-License-Identifier: GPL-3.0-or-later
"""A healthy job's verdict is always healthy, however busy the machine is with other work."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from rdm_job.directory import JobDirectory
from tests.distributed.nodes import TINY, Nodes, running
from tests.waiting import wait_until

MINUTES = float(os.environ.get("MINUTES", "60"))
PAUSE_S = 0.25
"""The pause after each step, to keep the test's own load small; it counts as waiting and hides nothing."""
CONFIGURATION = {
    **TINY,
    "logging": {"interval": 1, "eval_interval": 400, "eval_iterations": 4, "tensorboard": False},
    "checkpoint": {"interval": 200, "keep": 1},
}


@pytest.mark.long
@pytest.mark.timeout(60 * MINUTES + 600)
def test_healthy_job_is_never_suspect(tmp_path: Path) -> None:
    """Four ranks on two nodes, for `MINUTES`; `verdicts.jsonl` has each change, with the load."""
    job = "healthy"
    with running(Nodes(tmp_path, CONFIGURATION)) as nodes:
        for node in nodes.nodes:
            node["slots"] = 2
        (tmp_path / "pause").write_text(str(PAUSE_S))
        nodes.run(job)
        master = JobDirectory(tmp_path / "n1" / job, "n1")

        def read_verdict() -> dict[str, Any]:
            return master.read_state().verdict

        wait_until(f"{job} is healthy", read_verdict, lambda found: found.get("verdict") == "healthy")
        began, changes = time.monotonic(), [read_verdict()]
        with (tmp_path / "verdicts.jsonl").open("w") as file:
            while time.monotonic() - began < 60 * MINUTES:
                now = read_verdict()
                notes = [sentence.partition(":")[0] for sentence in now["evidence"][1:]]
                before = [sentence.partition(":")[0] for sentence in changes[-1]["evidence"][1:]]
                if (now["verdict"], notes) != (changes[-1]["verdict"], before):
                    changes.append(now)
                    seen = {"minute": (time.monotonic() - began) / 60, "load": os.getloadavg(), **now}
                    file.write(json.dumps(seen) + "\n")
                    file.flush()
                time.sleep(1)
        assert nodes.run_verb("n1", "stop", job, "--now")["stopped"]
        iteration = nodes.ended(job)["progress"]["iteration"]
    assert iteration > 60 * MINUTES / (20 * PAUSE_S)
    assert [one for one in changes if one["verdict"] != "healthy"] == []
