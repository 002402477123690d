# SPDX-License-Identifier: GPL-3.0-or-later
"""The universal copy, beside what DeepSpeed's own converter makes of the same checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch

from rdm_trainer.checkpoint.universal import convert
from tests.distributed import processes, resuming, training
from tests.distributed.resuming import GPT, Case, parallel

BF16 = training.configure(GPT, {"optimisation.precision": "bf16"})
CASES = [
    Case("one", GPT, parallel(tensor=2, pipeline=2), None),
    Case("two", GPT, parallel(tensor=2, zero_stage=2), None),
    Case("bf16", BF16, parallel(pipeline=2), None),
]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of some layouts."""
    root = tmp_path_factory.mktemp("jobs")
    processes.run(4, resuming.follow, CASES, str(root))
    return root


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
    checkpoints = jobs / case.name / "checkpoints"
    ours = convert(checkpoints, 4)
    by_deepspeed(checkpoints / "global_step4", tmp_path / "theirs")
    theirs = sorted(
        path.relative_to(tmp_path / "theirs") for path in (tmp_path / "theirs/zero").rglob("*.pt")
    )
    assert theirs == sorted(path.relative_to(ours) for path in (ours / "zero").rglob("*.pt"))
    assert len(theirs) > 100
    for name in theirs:
        if name.name == "optimizer_state.pt":
            continue
        one, other = load(ours / name), load(tmp_path / "theirs" / name)
        if name.name == "step.pt":
            assert one == other == 4
            continue
        assert torch.equal(one.pop("param"), other.pop("param")), name
        if one.get("cat_dim") is not None:
            assert one == other, name
