# SPDX-License-Identifier: GPL-3.0-or-later
"""A fine-tuning of a tiny model, with the same losses in each environment as on one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

CONFIG: dict[str, Any] = {
    "workload": "finetune",
    "model": {"path": "/jobs/data/model"},
    "data": {
        "train": ["/jobs/data/train.jsonl"],
        "valid": ["/jobs/data/valid.jsonl"],
        "max_length": 64,
    },
    "optimisation": {"train_iterations": 6, "global_batch_size": 8, "precision": "fp32", "lr": 1e-2},
    "evaluation": {"interval": 6, "samples": 1, "sample_tokens": 8},
    "checkpoint": {"interval": 0},
    "logging": {"interval": 1},
    "launcher": {"env": {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}},
}
"""Rows and model are where ``rdm-provision data`` brings them."""


def made(run: Callable[..., str], python: str, jobs: str) -> None:
    """Write the model and its rows on a node.

    Args:
        run: Runs a program there.
        python: One that has the packages.
        jobs: The directory of all jobs, as that program sees it.
    """
    run(python, "-m", "rdm_trainer.finetune.tiny", f"{jobs}/data")


def alone(run: Callable[..., str], python: str, jobs: str) -> dict[int, float]:
    """Return the losses that one process on a node has, by step; arguments as for :func:`made`."""
    text = json.dumps(CONFIG).replace("/jobs/data", f"{jobs}/data")
    script = (
        'export HF_HUB_OFFLINE=1; cd "$(mktemp -d)" && printf %s "$1" >tune.yaml && '
        '"$2" -m rdm_trainer finetune tune.yaml zero.stage=0 optimisation.micro_batch_size=8 --job-dir job '
        ">log 2>&1 && cat job/metrics.jsonl || { tail log >&2; exit 1; }"
    )
    lines = map(json.loads, run("sh", "-c", script, "sh", text, python).splitlines())
    return {line["iteration"]: line["loss"] for line in lines if "loss" in line}
