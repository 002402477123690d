# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights trained under one layout, exported, and loaded under others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rdm_core.errors import TrainerError
from rdm_trainer.checkpoint.files import CHECKPOINTS
from rdm_trainer.cli import main
from rdm_trainer.weights import directory
from rdm_trainer.weights.sources import open_source
from tests.distributed import processes, training
from tests.distributed.resuming import QWEN, parallel, train

# Where the weights come from, and the layout that takes them.
INITIAL_WEIGHTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dp 4, zero 3": ("job", parallel(zero_stage=3)),
    "tp 4, zero 0": ("exported", parallel(tensor=4, zero_stage=0)),
    "pp 2, dp 2": ("exported", parallel(pipeline=2)),
    "bf16": ("exported", {**parallel(tensor=2), "optimisation.precision": "bf16"}),
}


def train_export_and_load(root: Path) -> tuple[dict[str, float], str]:
    """Train under one layout, export, and begin with those weights under others.

    Returns:
        The first losses, and this rank's error about a damaged checkpoint.
    """
    job, exported = root / "job", root / "exported"
    begun = train(training.configure(QWEN, parallel(tensor=2, pipeline=2)), job, stop_after=3)
    losses = {"untrained": begun.losses()[1]}
    # Resuming under another layout continues the same training; the embedding is not tied.
    if dist.get_rank() == 0:
        shutil.copytree(job, root / "copy")
    dist.barrier()
    for name, changes, where in (
        ("same", parallel(tensor=2, pipeline=2), job),
        ("other", parallel(zero_stage=3), root / "copy"),
    ):
        losses[name] = train(training.configure(QWEN, changes), where, stop_after=4).losses()[4]
    if dist.get_rank() == 0:
        directory.write(open_source(job), exported)
    dist.barrier()
    for name, (source, changes) in INITIAL_WEIGHTS.items():
        config = training.configure(QWEN, {**changes, "checkpoint.init_from": str(root / source)})
        log = train(config, root / name, stop_after=1)
        assert log.find(f"the weights are those of {root / source}")
        losses[name] = log.losses()[1]
    # It resumes from its own checkpoint, even if the first weights are gone.
    config = training.configure(QWEN, {**parallel(pipeline=2), "checkpoint.init_from": str(root / "gone")})
    log = train(config, root / "pp 2, dp 2", stop_after=2)
    assert list(log.losses()) == [2]
    assert log.find("its own checkpoint counts; only the first start takes checkpoint.init_from")
    own = job if dist.get_rank() == 0 else root / "pp 2, dp 2"
    config = training.configure(QWEN, {**parallel(pipeline=2), "checkpoint.init_from": str(own)})
    with pytest.raises(TrainerError, match="on the nodes are of iterations 2 and 4;"):
        train(config, root / "refused", stop_after=1)
    if dist.get_rank() == 0:
        damage(job, root / "damaged")
    dist.barrier()
    config = training.configure(QWEN, {**parallel(pipeline=2), "checkpoint.init_from": str(root / "damaged")})
    with pytest.raises(TrainerError) as refused:
        train(config, root / "refused", stop_after=1)
    return losses, str(refused.value)


def damage(job: Path, copy: Path) -> Path:
    """Copy a job's checkpoints, flip bits of the newest one's largest file, and return that file."""
    shutil.copytree(job / CHECKPOINTS, copy)
    step = copy / open_source(job).where.name
    largest = max(step.iterdir(), key=lambda path: (path.stat().st_size, path.name))
    content = bytearray(largest.read_bytes())
    middle = slice(len(content) // 2, len(content) // 2 + 256)
    content[middle] = bytes(byte ^ 1 for byte in content[middle])
    largest.write_bytes(content)
    return largest


Result = tuple[Path, list[tuple[dict[str, float], str]]]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The directories of one launch, and what each rank found."""
    root = tmp_path_factory.mktemp("weights")
    return root, processes.run(4, train_export_and_load, root)


def test_no_rank_loads_weights_from_a_damaged_checkpoint(result: Result) -> None:
    root, found = result
    step = root / "damaged" / open_source(root / "job").where.name
    largest = max(step.iterdir(), key=lambda path: (path.stat().st_size, path.name))
    assert {error for _, error in found} == {
        f"{step} is damaged in {largest.name}; bring that back, or go to an earlier checkpoint with "
        f"`rdm-trainer checkpoint repair {root / 'damaged'} --iteration N`."
    }


def test_every_layout_starts_from_the_exported_weights(result: Result) -> None:
    losses = dict(result[1][0][0])
    untrained = losses.pop("untrained")
    assert losses.pop("same") == pytest.approx(losses.pop("other"), abs=1e-5)
    exact = {name: loss for name, loss in losses.items() if not name.startswith("bf16")}
    first = next(iter(exact.values()))
    assert exact == pytest.approx(dict.fromkeys(exact, first), abs=1e-5)
    assert losses == pytest.approx(dict.fromkeys(losses, first), abs=5e-3)
    assert abs(first - untrained) > 0.05


@torch.no_grad()
def test_exported_model_has_the_same_logits_in_transformers(
    result: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    job = result[0] / "job"
    with pytest.raises(SystemExit, match="0"):
        main(["export", str(job / CHECKPOINTS), str(tmp_path / "bf16"), "--dtype", "bf16"])
    assert "has the weights of" in capsys.readouterr().out
    assert json.loads((tmp_path / "bf16/config.json").read_text())["torch_dtype"] == "bfloat16"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "bf16")
    assert theirs.dtype == torch.bfloat16
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(theirs.state_dict()[name], open_source(job).whole("3.mlp.fc1.weight")[1].bfloat16())
    with pytest.raises(SystemExit, match="3"):
        main(["export", str(job), str(tmp_path / "bf16")])
    largest = damage(job, tmp_path / "damaged")
    capsys.readouterr()
    with pytest.raises(SystemExit, match="1"):
        main(["export", str(tmp_path / "damaged"), str(tmp_path / "none")])
    assert f"is damaged in {largest.name};" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    with pytest.raises(SystemExit, match="0"):
        main(["import", str(tmp_path / "bf16"), str(tmp_path / "job.yaml")])
