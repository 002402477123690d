# SPDX-License-Identifier: GPL-3.0-or-later
"""What nodes report of a job, as records."""

from __future__ import annotations

import json
from typing import Any

from rdm_provision.results.job_state import JobLines, JobNode, JobUpdate, job_news
from rdm_provision.runner.run_spec import RunSpec
from rdm_provision.runner.translator import Translator
from tests.unit.rdm_provision.job_reports import (
    NOW,
    REPORTED,
    state,
)


def test_node_report_becomes_a_record() -> None:
    job = state()
    assert (job.job, job.state, job.ended, job.seconds) == ("demo-1", "running", False, 60.0)
    assert job.nodes == (JobNode("n1", "running"), JobNode("n2", "running"))
    assert job.losses[-1] == (30, 8.91)
    assert job.directory == "/var/lib/rdm/rdm/demo-1"
    assert json.loads(json.dumps(job.to_json()))["gpu"] == {"n1": ["[0] NVIDIA H200 | 98 % |"]}


def test_the_time_to_go_of_a_resumed_job_is_that_of_its_own_steps() -> None:
    """The run has made ten steps in a minute; 900 steps and their losses are from an earlier run."""
    far = {"iteration": 910, "train_iterations": 1000, "step_seconds": 6.0, "losses": [[1, 11.0], [910, 3.0]]}
    assert state(started=NOW - 60, progress=far).remaining == 90 * 6.0
    assert state(progress={**far, "iteration": 1001}).remaining == 0
    # There is no estimate before its first steps.
    assert state(progress={**far, "step_seconds": None}).remaining is None


def retry(**more: Any) -> dict[str, Any]:
    details = {"host": "n1", "resolved_action": "rdm.provision.job", "res": {"job": REPORTED, "ended": False}}
    return {"event": "runner_retry", "event_data": {**details, **more}, "stdout": ""}


def test_each_retry_of_a_watched_job_is_an_event() -> None:
    translator = Translator(RunSpec(verb="train", playbook="train", inventory="i", nodes=("n1",)))
    (event,) = translator.translate(retry())
    assert isinstance(event, JobUpdate)
    assert (event.node, event.job.iteration) == ("n1", 30)


def test_key_job_of_another_module_is_ignored() -> None:
    translator = Translator(RunSpec(verb="train", playbook="train", inventory="i", nodes=("n1",)))
    assert list(translator.translate(retry(resolved_action="rdm.provision.job_plan"))) == []


def test_log_lines_are_an_event_and_no_lines_are_none() -> None:
    (event,) = job_news(1.0, "n2", {"text": "a\nb\n", "stream": "err", "offset": 4})
    assert event == JobLines(1.0, "n2", "err", "a\nb\n")
    assert list(job_news(1.0, "n2", {"text": "", "stream": "err", "offset": 4})) == []


def test_one_host_may_have_read_the_logs_of_all_nodes() -> None:
    reported = {"text": "", "parts": {"h1": "a\n", "n060": "b\n"}, "stream": "out", "offset": "h1=2,n060=2"}
    assert list(job_news(1.0, "login1", reported)) == [
        JobLines(1.0, "h1", "out", "a\n"),
        JobLines(1.0, "n060", "out", "b\n"),
    ]
