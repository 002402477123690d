# SPDX-License-Identifier: GPL-3.0-or-later
"""The universal copy, compared with the result of DeepSpeed's own converter for the same checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch

from rdm_trainer.checkpoint.universal import begin, convert, convert_part, finish, shares
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


def test_parts_together_are_the_whole(jobs: Path) -> None:
    checkpoints = jobs / "one" / "checkpoints"

    def contents(made: Path) -> dict[Path, Any]:
        return {path.relative_to(made): load(path) for path in made.rglob("fp32.pt")}

    whole = contents(convert(checkpoints, 4))
    begin(checkpoints, 4)
    counts = []
    for part in range(3):
        convert_part(checkpoints, 4, part, 3)
        counts.append(len(list((checkpoints / "global_step4_universal.partial").rglob("fp32.pt"))))
    assert 0 < counts[0] < counts[1] < counts[2]
    parts = contents(finish(checkpoints, 4))
    assert parts.keys() == whole.keys()
    assert all(torch.equal(parts[name]["param"], whole[name]["param"]) for name in whole)


def test_parts_are_about_as_large() -> None:
    sizes = {
        f"{layer}.{name}": size for layer in range(8) for name, size in (("a", 100), ("b", 300), ("c", 1))
    }
    found = shares(sizes, 4)
    assert set().union(*found) == set(sizes)
    assert sum(map(len, found)) == len(sizes)
    loads = [sum(sizes[name] for name in part) for part in found]
    assert max(loads) - min(loads) <= 300
