# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on a job of Slurm of which no agent tells: it waits, and has a reason; or it has ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rdm_job.directory import JobDirectory
from rdm_job.protocol import Node, Request, State
from rdm_job.slurm import commands, verbs
from rdm_job.slurm.states import Seen


@pytest.mark.parametrize(
    ("seen", "word", "words"),
    [
        (Seen(7, 7, "PENDING", reason="Resources", partition="gpu"), "starting", "It waits in partition gpu"),
        (Seen(7, 7, "CONFIGURING", flags=("CONFIGURING",)), "starting", "Its nodes are being prepared."),
        (Seen(7, 7, "TIMEOUT"), "failed", "It reached its time limit"),
    ],
)
def test_the_verdict_has_slurm_s_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Seen, word: str, words: str
) -> None:
    job = JobDirectory(tmp_path / "gpt", "login")
    job.make(Request("gpt", "login", (Node("login", "127.0.0.1", 1),)))
    # It has been requeued: how far it came is no step of this run.
    job.write_state(State("gpt", "queued", launcher="slurm", started=5.0, progress={"iteration": 40}))
    job.slurm.write_text(json.dumps({"job": 7}))
    monkeypatch.setattr(commands, "queue", lambda: [seen])
    monkeypatch.setattr(commands, "recorded", lambda number: None)
    found = verbs.state(job).verdict
    assert found["verdict"] == word
    assert found["reason"].startswith(words)
