# SPDX-License-Identifier: GPL-3.0-or-later
"""PyTorch's cache of compiled graphs keeps those with autograd functions, and takes none for another."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from rdm_core.config import Config, ModelConfig, OptimisationConfig
from rdm_trainer.distributed.pipeline_parallel.pipeline import Maker


def _product(transposed: bool) -> type[torch.autograd.Function]:
    """Return a product of two matrices, whose gradient is wrong if it is transposed."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(one, other)
            return one @ other

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            one, other = ctx.saved_tensors
            (gradient,) = gradients
            if transposed:
                gradient = gradient.t()
            return gradient @ other.t(), one.t() @ gradient

    return Product


def test_function_is_recompiled_only_when_its_backward_pass_changes() -> None:
    model = ModelConfig(layers=1, hidden_size=16, attention_heads=2, seq_length=8, vocab_size=16)
    job = Config(model=model, optimisation=OptimisationConfig(train_iterations=1, compile=True))
    Maker(job, torch.device("cpu"), torch.float32)  # It sets what the cache keeps.
    generator = torch.Generator().manual_seed(1)
    # Products of matrices need no code.
    one, other = (torch.randn(16, 16, generator=generator, requires_grad=True) for _ in range(2))
    seed = torch.randn(16, 16, generator=generator)

    def gradients(product: Any) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(product(one, other), (one, other), seed)

    hits = []
    with fresh_cache():
        for transposed in (False, True, False, True):
            torch.compiler.reset()
            counters.clear()
            product = _product(transposed)
            found = gradients(torch.compile(product.apply, fullgraph=True))
            torch.testing.assert_close(found, gradients(product.apply))
            hits.append(counters["aot_autograd"]["autograd_cache_hit"])
    assert hits == [0, 0, 1, 1]
