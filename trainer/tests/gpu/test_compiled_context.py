# SPDX-License-Identifier: GPL-3.0-or-later
"""Compiled blocks whose ranks share both heads and tokens, on four GPUs.

The graphs of the context ranks differ. If they began their collectives in different orders, the ranks would
wait for each other until NCCL's timeout.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tests.distributed import training
from tests.distributed.training import configure
from tests.gpu import processes

# The shapes of flash kernels. Two samples are computed in halves, whose collectives interleave.
GPT = configure(
    dataclasses.replace(
        training.GPT,
        model=dataclasses.replace(
            training.GPT.model, layers=2, hidden_size=256, seq_length=512, vocab_size=1000
        ),
    ),
    {
        "engine": "native",
        "parallel.tensor": 2,
        "parallel.context": 2,
        "parallel.zero_stage": 1,
        "optimisation.calculate_per_token_loss": True,
        "optimisation.lr": 1e-3,
    },
)

# Few machines have them.
if torch.cuda.device_count() >= 4:
    # fp32 has no fused kernel, so that each chunk attends to all keys before it.
    @pytest.mark.parametrize(
        "changes", [{}, {"parallel.sequence_parallel": True}], ids=["", "sequence parallel"]
    )
    @pytest.mark.parametrize("precision", ["bf16", "fp32"])
    def test_ranks_with_different_graphs_have_the_losses_of_eager_ones(
        precision: str, changes: dict[str, Any]
    ) -> None:
        job = configure(GPT, {"optimisation.precision": precision, **changes})
        jobs = {"eager": job, "compiled": configure(job, {"optimisation.compile": True})}
        ranks = processes.run(4, training.losses, jobs, 3, gpus=4)
        for found in ranks:
            eager, compiled = ([step["loss"] for step in found[name]] for name in ("eager", "compiled"))
            assert compiled == pytest.approx(eager, abs=1e-3 if precision == "fp32" else 0.02)
            assert found["compiled"] == ranks[0]["compiled"]
