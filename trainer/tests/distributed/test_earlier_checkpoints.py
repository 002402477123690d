# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints of earlier releases: a training resumes from them as that release's code did.

``checkpoints-0.1.tar.xz`` holds four steps of the two jobs below, written by 0.1.0 before parameters had
their current names: a GPT on one rank, a T5 in two stages. ``checkpoints-0.5.tar.xz`` holds those of the GPT
on two tensor ranks, written by 0.5.0, with the copy in DeepSpeed's universal form that it made for other
layouts. ``LOSSES`` are those of an uninterrupted training with that code.
"""

from __future__ import annotations

import dataclasses
import tarfile
from pathlib import Path
from typing import Any

import pytest

from rdm_core.config import Config
from rdm_trainer.models import t5
from tests.distributed import processes, resuming, training
from tests.distributed.resuming import parallel

RELEASES = {"gpt": "0.1", "t5": "0.1", "universal": "0.5"}
LOSSES = {
    "gpt": {5: 2.627811, 6: 2.627475, 7: 2.627296, 8: 2.624238},
    "t5": {5: 2.684708, 6: 2.673787, 7: 2.665729, 8: 2.664768},
    "universal": {5: 2.627886, 6: 2.627821, 7: 2.625874, 8: 2.623476},
}


def _small(base: Config, **changes: Any) -> Config:
    shape: dict[str, Any] = {"layers": 1, "hidden_size": 4, "attention_heads": 2, "seq_length": 8}
    return dataclasses.replace(base, model=dataclasses.replace(base.model, **shape, **changes))


GPT = _small(resuming.GPT, vocab_size=14)
T5 = _small(
    resuming.T5,
    decoder_layers=1,
    kv_channels=2,
    decoder_seq_length=8,
    vocab_size=12,
    vocab_extra_ids=3,
    lm_head_bias=False,
)
# (which checkpoint, the job, the layout that resumes)
CASES = {
    "gpt": ("gpt", GPT, parallel()),
    "gpt-tensor": ("gpt", GPT, parallel(tensor=2)),
    "t5": ("t5", T5, parallel(pipeline=2)),
    "t5-stage-two": ("t5", T5, parallel(zero_stage=2)),
    "universal": ("universal", GPT, parallel(tensor=2)),
    "universal-pipeline": ("universal", GPT, {"engine": "native", **parallel(pipeline=2)}),
    "universal-alone": ("universal", GPT, parallel()),
}


def resume_each(names: list[str], root: str) -> dict[str, dict[int, float]]:
    """Train the rest of each case in this launch."""
    # At that time, a T5 did not see tokens within a text that have the padding's id.
    t5._visible = lambda tokens, padding: (tokens != padding)[:, None, None, :]
    return {
        name: resuming.train(training.configure(CASES[name][1], CASES[name][2]), Path(root) / name).losses()
        for name in names
    }


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, float]]:
    """The losses of the steps after the checkpoint, by case."""
    root = tmp_path_factory.mktemp("jobs")
    for name, (kind, _, _) in CASES.items():
        file = Path(__file__).with_name(f"checkpoints-{RELEASES[kind]}.tar.xz")
        with tarfile.open(file) as archive:
            archive.extractall(root / f".{name}", filter="data")
        (root / f".{name}" / kind).rename(root / name)
    alone = ["gpt", "universal-alone"]
    found: dict[str, dict[int, float]] = processes.run(1, resume_each, alone, str(root))[0]
    others = [name for name in CASES if name not in alone]
    return found | dict(processes.run(2, resume_each, others, str(root))[0])


@pytest.mark.parametrize("name", CASES)
def test_job_of_an_earlier_release_resumes_with_its_losses(
    name: str, losses: dict[str, dict[int, float]]
) -> None:
    assert losses[name] == pytest.approx(LOSSES[CASES[name][0]], abs=1e-5)
