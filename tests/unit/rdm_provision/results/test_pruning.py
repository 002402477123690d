# SPDX-License-Identifier: GPL-3.0-or-later
"""Which jobs are old enough to be removed."""

from __future__ import annotations

from typing import Any

import pytest

from rdm_provision import Cluster
from rdm_provision.errors import InputError
from rdm_provision.results.pruning import age, prunable
from tests.unit.rdm_provision.conftest import MakeInventory
from tests.unit.rdm_provision.job_reports import (
    NOW,
    REPORTED,
    answered,
)


def test_only_jobs_that_ended_long_ago_on_their_master_are_pruned(make_inventory: MakeInventory) -> None:
    cluster = Cluster.load(make_inventory("n1", "n2"))
    day = 86400.0

    def job(name: str, state: str, ended: float | None, **more: Any) -> dict[str, Any]:
        return {**REPORTED, "job": name, "state": state, "started": NOW - 99 * day, "ended": ended, **more}

    answers = [
        job("old", "finished", NOW - 40 * day),
        job("older", "failed", NOW - 50 * day),
        job("young", "stopped", NOW - 29 * day),
        job("runs", "running", None),
        job("waits", "queued", None, started=None),
        job("odd", "finished", None, started=None),
        job("of-n2", "finished", NOW - 60 * day, master="n2"),
        job("submitted", "finished", NOW - 31 * day, master="n7", launcher="slurm"),
    ]
    known = cluster.heard_jobs(answered({"n1": {"jobs": answers, "directory": "/d"}}))
    assert [one.job for one in prunable(known, age("30d"), NOW)] == ["older", "old", "submitted"]
    run = cluster.prune(["old", "older"], check=True)
    assert run.spec.literal_vars == {"job_names": ["old", "older"]}
    assert (run.spec.check, run.spec.exclusive, cluster.prune(["old"]).spec.exclusive) == (True, False, True)


@pytest.mark.parametrize("text", ["30", "d", "-1d", "1y", "1d2h", "", "1e3d"])
def test_invalid_age_is_bad_input(text: str) -> None:
    assert (age("90m"), age("1.5h"), age("2w")) == (5400.0, 5400.0, 1209600.0)
    with pytest.raises(InputError, match="is no age"):
        age(text)
