# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rank is slow, from the timers that Megatron writes for all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_log.observe import observe
from rdm_log.rank_timers import layout, slow
from rdm_log.verdict import evaluate

NODES = {rank: f"n{1 + rank // 4}" for rank in range(16)}


def test_a_rank_is_compared_with_the_replicas_of_its_stage() -> None:
    """The second stage has more layers, which makes no rank slow."""
    even = {rank: 500.0 if rank < 8 else 900.0 for rank in range(16)}
    assert slow(even, 2, 1, NODES) == []
    (sign,) = slow({**even, 6: 800.0}, 2, 1, NODES)
    assert (sign.kind, sign.node, sign.rank, sign.is_note) == ("slow", "n2", 6, False)
    assert sign.text == (
        "Rank 6 on n2 is slow: it computes for 800 ms in a step, its peers for 500 ms (1.6 times)."
    )
    # A rank with a stage of its own has no peers.
    assert slow({**even, 6: 800.0}, 16, 1, NODES) == []


def test_within_a_tensor_parallel_group_the_faulty_rank_is_unknown() -> None:
    times = {rank: 800.0 if rank in (4, 5, 6, 7) else 500.0 for rank in range(16)}
    (sign,) = slow(times, 1, 4, NODES)
    assert (sign.node, sign.rank) == ("n2", None)
    assert sign.text.startswith("One of the ranks 4 to 7 on n2 is slow: it computes for 800 ms")
    (sign,) = slow(times, 1, 4, {})
    assert (sign.node, sign.text[:33]) == ("", "One of the ranks 4 to 7 is slow: ")


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_ranks_that_do_not_fit_the_layout_are_not_compared(stages: int) -> None:
    assert slow({0: 500.0, 1: 500.0, 2: 500.0, 7: 900.0}, stages, 1, {}) == []
    assert slow({rank: 500.0 + 900 * (rank == 1) for rank in range(5)}, 2, 1, {}) == []


def test_timers_that_most_ranks_do_not_use_compare_no_ranks() -> None:
    assert slow({0: 0.0, 1: 0.0, 2: 0.0, 3: 900.0}, 1, 1, {}) == []


def test_layout_is_read_from_the_log_of_program_or_script() -> None:
    arguments = {"pipeline_model_parallel_size": "8", "PIPELINE_MP_SIZE": "4", "TENSOR_MP_SIZE": "2"}
    assert layout(arguments) == (8, 2)
    assert layout({"PIPELINE_MP_SIZE": "4"}) is None
    assert layout({**arguments, "TENSOR_MP_SIZE": "$TP"}) is None


@given(st.lists(st.floats(0.95, 1.2), min_size=16, max_size=16))
def test_ranks_at_a_usual_speed_are_not_named(factors: list[float]) -> None:
    assert slow({rank: 500.0 * one for rank, one in enumerate(factors)}, 2, 1, NODES) == []


def test_a_slow_rank_of_others_logs_is_named_with_its_node(tmp_path: Path) -> None:
    info = "NODE_RANK: {}\nNNODES: 2\nWORLD_SIZE: 4\nTENSOR_MP_SIZE: 1\nPIPELINE_MP_SIZE: 1\n"
    step = " iteration {:8d}/    5000 | elapsed time per iteration (ms): 900.0 | lm loss: {:.3f}E+00 |\n"

    def timers(times: dict[int, float]) -> str:
        parts = {"forward-compute": 0.4, "backward-compute": 0.6}
        return "times across ranks (ms):\n" + "".join(
            f"  {name}:\n" + "".join(f"     rank {rank:2d}: {share * ms:.2f}\n" for rank, ms in times.items())
            for name, share in parts.items()
        )

    def found(times: dict[int, float]) -> object:
        lines = "".join(step.format(10 * n, 9 - n / 10) + timers(times) for n in range(1, 41))
        (tmp_path / "n060.out").write_text(info.format(0))
        (tmp_path / "n061.out").write_text(info.format(1) + lines)
        now = (tmp_path / "n061.out").stat().st_mtime
        verdict = evaluate(observe(tmp_path, state="RUNNING", now=now))
        return verdict.word, [(one.kind, one.node, one.rank) for one in verdict.culprits]

    assert found({0: 500.0, 1: 510.0, 2: 505.0, 3: 495.0}) == ("healthy", [])
    assert found({0: 500.0, 1: 510.0, 2: 505.0, 3: 850.0}) == ("suspect", [("slow", "n061", 3)])
    assert found({0: 500.0, 1: 850.0, 2: 505.0, 3: 495.0}) == ("suspect", [("slow", "n060", 1)])
