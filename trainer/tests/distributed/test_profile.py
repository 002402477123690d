# SPDX-License-Identifier: GPL-3.0-or-later
"""tune predicts from what two processes have measured."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from rdm_job import network
from rdm_planner.profile import Profile
from rdm_trainer.cli import cli
from tests.distributed.processes import Command

CONFIG = {
    "name": "tiny",
    "model": {
        "layers": 4,
        "hidden_size": 32,
        "attention_heads": 4,
        "seq_length": 16,
        "vocab_size": 98,
        "make_vocab_size_divisible_by": 8,
    },
    "optimisation": {
        "micro_batch_size": 2,
        "global_batch_size": 8,
        "train_iterations": 4,
        "precision": "fp32",
    },
    "data": {"mock": True},
}


# Products in fp8 need multiples of 16: half of these features are none, and neither are one sample's tokens.
FP8 = (
    *("optimisation.precision=bf16", "optimisation.fp8_recipe=tensorwise"),
    *("model.ffn_hidden_size=2064", "model.seq_length=8"),
)


@pytest.mark.parametrize(
    ("options", "more", "tensors", "sizes"),
    [
        (["--micro-batch", "2"], (), {1, 2}, {1, 2}),
        (["--micro-batch", "2"], FP8, {1}, {2}),
        (["--sizes", "3", "--no-checkpointing"], (), {1, 2}, {3}),
    ],
    ids=["fp32", "fp8", "one size"],
)
def test_two_ranks_measure_layers_and_links(
    tmp_path: Path, options: list[str], more: tuple[str, ...], tensors: set[int], sizes: set[int]
) -> None:
    job, file = tmp_path / "tiny.yaml", tmp_path / "cpu.json"
    job.write_text(yaml.safe_dump(CONFIG))
    arguments = ["profile", str(job), "--output", str(file), *options, "--blocks", "1", "2"]
    # The job's own layout does not matter.
    arguments += ["engine=native", "parallel.pipeline=2", "parallel.virtual_pipeline=2", "parallel.context=2"]
    arguments += more
    found_ports = network.take_free_ports("127.0.0.1", 1, os.getpid())
    assert found_ports, "no port is free"
    world = {
        **os.environ,
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(found_ports[0]),
    }
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                Command(*arguments, environment={**world, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            )
            for rank in range(2)
        ]
        errors = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    found = Profile.read(file)
    assert found.gpu == "cpu"
    assert found.links["within"].keys() == {"point_to_point", "all_reduce"}
    # An optimiser that takes no time would be 1e-9 s for all of these parameters.
    assert found.optimiser > 1e-9
    assert found.layers.keys() == tensors
    for kinds in found.layers.values():
        assert kinds.keys() == {"Block", "Embedding", "Head"}
        assert all(points.keys() == sizes for points in kinds.values())
    tune = ["tune", str(job), "engine=native", *more, "--nodes", "1xcpu:2", "--profile", str(file), "--json"]
    if "--no-checkpointing" in options:
        refused = str(CliRunner().invoke(cli, tune).exception)
        assert "The profile of cpu was measured with --no-checkpointing; search layouts with" in refused
        tune.append("parallel.activation_checkpointing=none")
    tuned = CliRunner().invoke(cli, tune)
    best = json.loads(tuned.output)["best"]
    assert {row["tensor"] for row in best} == tensors
