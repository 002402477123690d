# SPDX-License-Identifier: GPL-3.0-or-later
"""The requested values under the names with which programs report theirs, compared with their reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdm_core import heartbeat
from rdm_core.heartbeat import HeartbeatWriter
from rdm_job.directory import JobDirectory
from rdm_job.health import Health
from rdm_job.info import requested
from rdm_job.watch import Watch
from tests.unit.job.two_nodes import REQUEST, STATE, config

OURS = {
    "model": {"layers": 4, "hidden_size": 64, "attention_heads": 4},
    "parallel": {"pipeline": 2, "partition": "3-1"},
    "optimisation": {"micro_batch_size": 2, "global_batch_size": 8},
}
# The command of FASOP's _01_run_inter.sh, and the lines that the script writes before it.
PROGRAM = [
    *("_00_pretrain_gpt.py", "--num-layers", "48", "--hidden-size=1600", "--micro-batch-size", "1"),
    *(
        "--pipeline-model-parallel-size",
        "2",
        "--balance",
        "25-23",
        "--no-async-tensor-model-parallel-allreduce",
    ),
]
PRINTED = (
    "n1\nNODE_RANK: 0\nMASTER_ADDR: 10.0.0.1\nNNODES: 3\nWORLD_SIZE: 4\nMICRO_BATCH_SIZE: 1\n"
    "PARTITION: 24-24\nMODEL: xl\n"
)


def test_layout_and_model_are_requested_of_our_trainer(tmp_path: Path) -> None:
    found = requested(REQUEST, config(tmp_path, **OURS))
    assert found == {
        "NNODES": "2",
        "WORLD_SIZE": "4",
        "GLOBAL_BATCH_SIZE": "8",
        "MICRO_BATCH_SIZE": "2",
        "TENSOR_MP_SIZE": "1",
        "PIPELINE_MP_SIZE": "2",
        "DP_SIZE": "2",
        "PARTITION": "3-1",
        "HIDDEN_SIZE": "64",
        "NUM_LAYERS": "4",
    }
    # The partition is by chunk, with two chunks per stage.
    chunks = {"pipeline": 2, "virtual_pipeline": 2, "partition": "1-0-2-1"}
    interleaved = requested(REQUEST, config(tmp_path, **{**OURS, "parallel": chunks, "engine": "native"}))
    assert interleaved["PARTITION"] == "3-1"
    even = {**OURS, "parallel": {"pipeline": 2}}
    assert "PARTITION" not in requested(REQUEST, config(tmp_path, **even))


def test_arguments_and_derived_values_are_requested_of_other_programs(tmp_path: Path) -> None:
    found = requested(
        REQUEST, config(tmp_path, launcher={"program": PROGRAM, "env": {"MODEL": "xl", "X": "1"}})
    )
    assert found == {
        **{"NNODES": "2", "WORLD_SIZE": "4", "world_size": "4", "MODEL": "xl"},
        **{"num_layers": "48", "NUM_LAYERS": "48", "hidden_size": "1600", "HIDDEN_SIZE": "1600"},
        **{"micro_batch_size": "1", "MICRO_BATCH_SIZE": "1", "balance": "25-23", "PARTITION": "25-23"},
        **{"pipeline_model_parallel_size": "2", "PIPELINE_MP_SIZE": "2"},
        **{"data_parallel_size": "2", "DP_SIZE": "2"},
    }
    odd = ["train.py", "--tensor-model-parallel-size", "$TP"]
    assert "DP_SIZE" not in requested(REQUEST, config(tmp_path, launcher={"program": odd}))


@pytest.mark.parametrize(
    ("options", "replicas"),
    [
        ("--tensor-model-parallel-size 2", "2"),
        ("--ds-sequence-parallel-size 2", "2"),
        ("--context-parallel-size=2 --sequence-parallel --pipeline-model-parallel-size 2", "1"),
        ("--expert-model-parallel-size 2", None),
        ("--tensor-model-parallel 2", None),
        ("--tensor-model-parallel-size 8", None),
        ("--tensor-model-parallel-size 0", None),
    ],
)
def test_replicas_are_requested_only_where_known_from_options(
    tmp_path: Path, options: str, replicas: str | None
) -> None:
    """With 4 processes. Unknown options may divide the work, too, and forks reduce sizes above 4."""
    program = ["pretrain_gpt.py", "--num-layers", "4", *options.split()]
    found = requested(REQUEST, config(tmp_path, launcher={"program": program}))
    assert (found.get("data_parallel_size"), found.get("DP_SIZE")) == (replicas, replicas)


def test_no_replicas_are_requested_of_a_script_with_options_inside(tmp_path: Path) -> None:
    found = requested(REQUEST, config(tmp_path, launcher={"program": ["bash", "pretrain.sh"]}))
    assert found == {"world_size": "4", "WORLD_SIZE": "4", "NNODES": "2"}


def test_node_that_built_another_model_is_named(tmp_path: Path, job: JobDirectory) -> None:
    settings = config(tmp_path, **OURS)
    watch, health = Watch(job, REQUEST, settings), Health(REQUEST, settings)
    ranks = [{"rank": rank, "pid": 1, "state": "running", "world": 4} for rank in (0, 1)]

    def evidence() -> list[str]:
        watch.update(ranks)
        found: list[str] = health.verdict(STATE, {"n1": {"watch": watch.report()}})["evidence"]
        return found

    assert evidence() == ["It has not come to a step yet."]
    right = {key: value for key, value in requested(REQUEST, settings).items() if key != "WORLD_SIZE"}
    HeartbeatWriter(job.heartbeat(0)).built(right)
    assert evidence() == ["It has not come to a step yet."]
    HeartbeatWriter(job.heartbeat(1)).built({**right, "NUM_LAYERS": 3, "PARTITION": "2-1"})
    assert evidence() == [
        "PARTITION is 2-1, 3-1 on n1, and 3-1 was requested.",
        "NUM_LAYERS is 3, 4 on n1, and 4 was requested.",
    ]
    # A launcher may have started all processes on one node.
    for rank in (0, 1):
        watch.begin()
        HeartbeatWriter(job.heartbeat(rank)).built({**right, "NNODES": 1})
    assert evidence() == ["NNODES is 1 on n1, and 2 was requested."]
    # Another attempt reports its values again.
    job.forget_ranks()
    watch.begin()
    assert evidence() == ["It has not come to a step yet."]


def test_values_printed_by_a_script_are_compared_while_it_runs(tmp_path: Path, job: JobDirectory) -> None:
    settings = config(tmp_path, launcher={"program": PROGRAM, "env": {"MODEL": "xl"}})
    watch, health = Watch(job, REQUEST, settings), Health(REQUEST, settings)
    half = PRINTED.index("WORLD_SIZE")
    for part in (PRINTED[:half], PRINTED[half:]):
        with job.log("n1", "out").open("a") as file:
            file.write(part)
        watch.update([])
    found = health.verdict(STATE, {"n1": {"watch": watch.report()}})
    assert (found["verdict"], found["evidence"]) == (
        "suspect",
        ["PARTITION is 24-24 on n1, and 25-23 was requested.", "NNODES is 3 on n1, and 2 was requested."],
    )


def test_former_name_of_the_report_is_accepted_with_a_notice() -> None:
    with pytest.warns(DeprecationWarning, match="Pace is called HeartbeatWriter now"):
        assert heartbeat.Pace is heartbeat.HeartbeatWriter
