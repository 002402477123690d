# SPDX-License-Identifier: GPL-3.0-or-later
"""The state with which a restarted agent continues its job."""

from __future__ import annotations

from dataclasses import replace

from rdm_job.agent import after_restart
from rdm_job.protocol import Failure
from tests.unit.job.two_nodes import STATE


def test_the_master_s_restart_is_one_more_failure_and_all_others_are_kept() -> None:
    failure = Failure("n2", 1, "Rank 1 on n2 failed.", ("ValueError",))
    known = replace(STATE, master="n1", failures=[failure], restarts=1)
    found = after_restart(known, "n1")
    assert found.restarts == 2
    assert found.failures[0] == failure
    assert [(one.node, one.rank) for one in found.failures] == [("n2", 1), ("n1", None)]
    assert "container was restarted" in found.failures[1].reason
    # The master records the restarts of other nodes.
    assert after_restart(known, "n2") == known
