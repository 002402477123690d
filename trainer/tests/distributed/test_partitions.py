# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole tensors read from DeepSpeed's own files, and from what the engine writes with the same weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from rdm_trainer import models
from rdm_trainer.checkpoint import partitions
from rdm_trainer.checkpoint.distributed import Saved, read_metadata
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.checkpoint.fragments import STATES, STEP
from rdm_trainer.checkpoint.storage import shares
from tests.distributed import processes, resuming, training
from tests.distributed.resuming import GPT, Case, parallel

BF16 = training.configure(GPT, {"optimisation.precision": "bf16"})
CASES = [
    Case("none", GPT, parallel(tensor=2, pipeline=2, zero_stage=0), None),
    Case("one", GPT, parallel(tensor=2, pipeline=2), None),
    Case("two", GPT, parallel(tensor=2, zero_stage=2), None),
    Case("three", GPT, parallel(tensor=2, zero_stage=3), None),
    Case("bf16", BF16, parallel(pipeline=2), None),
    Case("bf16-three", BF16, parallel(zero_stage=3), None),
]
SPECS = models.shard_specs(GPT.model)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of some layouts, each in both forms."""
    root = tmp_path_factory.mktemp("jobs")
    earlier = [dataclasses.replace(case, name=f"earlier-{case.name}", earlier=True) for case in CASES]
    processes.run(4, resuming.follow, CASES + earlier, str(root))
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
    return jobs / name / "checkpoints" / "global_step4"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_forms_have_the_same_numbers(case: Case, jobs: Path) -> None:
    theirs = saved(step(jobs, f"earlier-{case.name}"))
    metadata = read_metadata(step(jobs, case.name))
    keys = {f"{state}.{name}" for name in SPECS for state in STATES}
    assert metadata.state_dict_metadata.keys() == {*keys, STEP}
    ours = Saved(step(jobs, case.name), metadata)
    assert ours.whole(STEP).item() == theirs.whole(STEP).item() == 4
    for key in keys:
        assert torch.equal(ours.whole(key), theirs.whole(key)), key


@pytest.mark.parametrize("name", ["none", "two", "three"])
def test_every_stage_has_the_same_tensors(name: str, jobs: Path) -> None:
    ours, other = (Saved(one, read_metadata(one)) for one in (step(jobs, name), step(jobs, "one")))
    for parameter in SPECS:
        for state in STATES:
            pair = (tensors.whole(f"{state}.{parameter}") for tensors in (ours, other))
            # Each layout sums in another order.
            torch.testing.assert_close(*pair, atol=1e-4, rtol=0, msg=parameter)


def test_a_parameter_that_is_not_complete_is_not_read(jobs: Path) -> None:
    directory = step(jobs, "earlier-two")
    manifest, pieces = described(directory)
    rest = [piece for piece in pieces if piece.replica == 0]
    ours = Saved(directory, partitions.Partitions(rest, manifest.layout, SPECS, GPT.spec.vocabulary))
    with pytest.raises(ValueError, match=r"the files have \d+ of \d+ elements of \d"):
        [ours.whole(f"fp32.{name}") for name in SPECS]


def test_parts_are_about_as_large() -> None:
    sizes = {
        f"{layer}.{name}": size for layer in range(8) for name, size in (("a", 100), ("b", 300), ("c", 1))
    }
    found = shares(sizes, 4)
    assert set().union(*found) == set(sizes)
    assert sum(map(len, found)) == len(sizes)
    loads = [sum(sizes[name] for name in part) for part in found]
    assert max(loads) - min(loads) <= 300
