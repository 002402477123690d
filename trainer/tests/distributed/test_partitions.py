# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole tensors read from DeepSpeed's files, compared with what DeepSpeed's own converter makes of them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch

from rdm_trainer import models
from rdm_trainer.checkpoint import partitions
from rdm_trainer.checkpoint.distributed import Saved
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.checkpoint.fragments import STATES, STEP
from rdm_trainer.checkpoint.storage import shares
from tests.distributed import processes, resuming, training
from tests.distributed.resuming import GPT, Case, parallel

BF16 = training.configure(GPT, {"optimisation.precision": "bf16"})
CASES = [
    Case("one", GPT, parallel(tensor=2, pipeline=2), None),
    Case("two", GPT, parallel(tensor=2, zero_stage=2), None),
    Case("bf16", BF16, parallel(pipeline=2), None),
]
# DeepSpeed's converter makes nothing of these; a test compares them with the others.
OTHERS = [
    Case("none", GPT, parallel(tensor=2, pipeline=2, zero_stage=0), None),
    Case("three", GPT, parallel(tensor=2, zero_stage=3), None),
]
SPECS = models.shard_specs(GPT.model)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of some layouts."""
    root = tmp_path_factory.mktemp("jobs")
    processes.run(4, resuming.follow, CASES + OTHERS, str(root))
    return root


def described(step: Path) -> tuple[Manifest, list[partitions.Piece]]:
    manifest = Manifest.read(step)
    assert manifest is not None
    names = partitions.described_files(manifest)
    return manifest, [piece for name in names for piece in partitions.describe(step, name, manifest)]


def saved(step: Path) -> Saved:
    manifest, pieces = described(step)
    return Saved(step, partitions.Partitions(pieces, manifest.layout, SPECS, GPT.spec.vocabulary))


def by_deepspeed(source: Path, target: Path) -> None:
    from deepspeed.checkpoint import ds_to_universal

    ds_to_universal.main(
        argparse.Namespace(
            input_folder=str(source),
            output_folder=str(target),
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=False,
        )
    )


def load(path: Path) -> Any:
    return torch.load(path, weights_only=False)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_is_what_deepspeed_makes(case: Case, jobs: Path, tmp_path: Path) -> None:
    step = jobs / case.name / "checkpoints" / "global_step4"
    by_deepspeed(step, tmp_path / "theirs")
    theirs = {folder.name: folder for folder in (tmp_path / "theirs/zero").iterdir() if folder.is_dir()}
    assert theirs.keys() == SPECS.keys()
    ours = saved(step)
    assert ours.whole(STEP).item() == 4
    for name, folder in theirs.items():
        assert load(folder / "step.pt") == 4
        for state in STATES:
            assert torch.equal(ours.whole(f"{state}.{name}"), load(folder / f"{state}.pt")["param"]), name


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.name)
def test_every_stage_has_the_same_tensors(case: Case, jobs: Path) -> None:
    ours = saved(jobs / case.name / "checkpoints" / "global_step4")
    other = saved(jobs / "one" / "checkpoints" / "global_step4")
    assert ours.whole(STEP).item() == 4
    for name in SPECS:
        for state in STATES:
            one, two = (tensors.whole(f"{state}.{name}") for tensors in (ours, other))
            # Each layout sums in another order.
            torch.testing.assert_close(one, two, atol=1e-4, rtol=0, msg=name)


def test_a_parameter_that_is_not_complete_is_not_read(jobs: Path) -> None:
    step = jobs / "two" / "checkpoints" / "global_step4"
    manifest, pieces = described(step)
    rest = [piece for piece in pieces if piece.replica == 0]
    ours = Saved(step, partitions.Partitions(rest, manifest.layout, SPECS, GPT.spec.vocabulary))
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
