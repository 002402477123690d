# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole tensors read from DeepSpeed's own files, and from what the engine writes with the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from rdm_core.config import Config
from rdm_trainer import models
from rdm_trainer.checkpoint import partitions
from rdm_trainer.checkpoint.distributed import Saved, read_metadata
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.checkpoint.fragments import STATES, STEP
from rdm_trainer.checkpoint.storage import shares
from rdm_trainer.checkpoint.store import Checkpoints
from rdm_trainer.engines.deepspeed.states import DeepSpeedStates
from rdm_trainer.train import Training
from tests.distributed import deepspeed_files, processes, resuming, training
from tests.distributed.resuming import GPT, parallel

BF16 = training.configure(GPT, {"optimisation.precision": "bf16"})
JOBS = {
    "none": training.configure(GPT, parallel(tensor=2, pipeline=2, zero_stage=0)),
    "one": training.configure(GPT, parallel(tensor=2, pipeline=2)),
    "two": training.configure(GPT, parallel(tensor=2, zero_stage=2)),
    "three": training.configure(GPT, parallel(tensor=2, zero_stage=3)),
    "bf16": training.configure(BF16, parallel(pipeline=2)),
    "bf16-three": training.configure(BF16, parallel(zero_stage=3)),
}
SAVED_AT = 2
SPECS = models.shard_specs(GPT.model)


def both_forms(jobs: Mapping[str, Config], root: str) -> None:
    """Train each job for some steps, and save it in both forms."""
    for name, job in jobs.items():
        config = training.configure(job, {"checkpoint.exit_interval": SAVED_AT})
        with deepspeed_files.saving():
            trained = Training(config, Path(root) / f"earlier-{name}", write=resuming.Log())
        trained.run()
        trained.engine.states.__class__ = DeepSpeedStates
        checkpoints = Checkpoints(
            config,
            trained.engine,
            trained.topology,
            trained._collective,
            Path(root) / name / "checkpoints",
            resuming.Log(),
        )
        assert checkpoints.save(SAVED_AT, trained._state())
        trained.close()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of some layouts, each in both forms."""
    root = tmp_path_factory.mktemp("jobs")
    processes.run(4, both_forms, JOBS, str(root))
    return root


def described(directory: Path) -> tuple[Manifest, list[partitions.Piece]]:
    manifest = Manifest.read(directory)
    assert manifest is not None
    names = partitions.described_files(manifest)
    return manifest, [piece for name in names for piece in partitions.describe(directory, name, manifest)]


def saved(directory: Path) -> Saved:
    manifest, pieces = described(directory)
    return Saved(directory, partitions.Partitions(pieces, manifest.layout, SPECS, GPT.spec.vocabulary))


def step(jobs: Path, name: str) -> Path:
    return jobs / name / "checkpoints" / f"global_step{SAVED_AT}"


@pytest.mark.parametrize("name", JOBS)
def test_both_checkpoint_formats_have_the_same_values(name: str, jobs: Path) -> None:
    theirs = saved(step(jobs, f"earlier-{name}"))
    metadata = read_metadata(step(jobs, name))
    keys = {f"{state}.{parameter}" for parameter in SPECS for state in STATES}
    assert metadata.state_dict_metadata.keys() == {*keys, STEP}
    ours = Saved(step(jobs, name), metadata)
    assert ours.whole(STEP).item() == theirs.whole(STEP).item() == SAVED_AT
    for key in keys:
        assert torch.equal(ours.whole(key), theirs.whole(key)), key


@pytest.mark.parametrize("name", ["none", "two", "three"])
def test_every_zero_stage_has_the_same_tensors(name: str, jobs: Path) -> None:
    ours, other = (Saved(one, read_metadata(one)) for one in (step(jobs, name), step(jobs, "one")))
    for parameter in SPECS:
        for state in STATES:
            pair = (tensors.whole(f"{state}.{parameter}") for tensors in (ours, other))
            # Each layout sums in another order.
            torch.testing.assert_close(*pair, atol=1e-4, rtol=0, msg=parameter)


def test_incomplete_parameter_is_not_read(jobs: Path) -> None:
    directory = step(jobs, "earlier-two")
    manifest, pieces = described(directory)
    rest = [piece for piece in pieces if piece.replica == 0]
    ours = Saved(directory, partitions.Partitions(rest, manifest.layout, SPECS, GPT.spec.vocabulary))
    with pytest.raises(ValueError, match=r"the files have \d+ of \d+ elements of \d"):
        [ours.whole(f"fp32.{name}") for name in SPECS]


def test_shards_have_about_the_same_size() -> None:
    sizes = {
        f"{layer}.{name}": size for layer in range(8) for name, size in (("a", 100), ("b", 300), ("c", 1))
    }
    found = shares(sizes, 4)
    assert set().union(*found) == set(sizes)
    assert sum(map(len, found)) == len(sizes)
    loads = [sum(sizes[name] for name in part) for part in found]
    assert max(loads) - min(loads) <= 300
