# SPDX-License-Identifier: GPL-3.0-or-later
"""Ranks that wait in a collective of Gloo report it, and so does the one that has not entered it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rdm_core.heartbeat import HeartbeatWriter, collectives
from rdm_log.collectives import awaited
from rdm_log.peers import GroupState, RankHeartbeat
from rdm_trainer import flight_recorder
from rdm_trainer.flight_recorder import FlightRecorder
from tests.distributed import processes
from tests.waiting import wait_until

WORLD = 3


def hang(folder: str) -> list[list[Any]]:
    """Let ranks 1 and 2 wait for rank 0, until all have reported; return what each rank reported."""
    flight_recorder.enable()
    flight_recorder._EACH_S, flight_recorder._HUNG_S = 0.05, 0.1
    rank = dist.get_rank()
    group = dist.new_group(list(range(WORLD)))
    paths = [Path(folder) / f"{n}.heartbeat" for n in range(WORLD)]
    heartbeat = HeartbeatWriter(paths[rank])
    heartbeat.step(5)
    recorder = FlightRecorder(heartbeat, {"data-parallel": group}, print)
    for _ in range(3):
        dist.all_reduce(torch.ones(4), group=group)

    def reported() -> list[list[Any]]:
        return [collectives(path, 5) for path in paths]

    def all_have_reported() -> bool:
        found = [GroupState(*one) for of_rank in reported() for one in of_rank]
        of_group = [state for state in found if state.kind]
        return sorted(state.entered for state in of_group) == [3, 4, 4]

    if rank == 0:
        wait_until("all have reported", all_have_reported)
        found = reported()
    dist.all_reduce(torch.ones(4), group=group)
    recorder.close()
    return found if rank == 0 else []


def test_rank_that_has_not_entered_a_collective_is_named(tmp_path: Path) -> None:
    found, *_ = processes.run(WORLD, hang, str(tmp_path))
    ranks = [
        RankHeartbeat.of("n1", {"rank": rank, "collectives": groups}) for rank, groups in enumerate(found)
    ]
    (sign,) = awaited(ranks)
    assert (sign.node, sign.rank) == ("n1", 0)
    assert sign.text.startswith(
        "Rank 0 has not entered all_reduce 4 of the data-parallel group; 2 others have waited since "
    )
