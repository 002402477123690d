# SPDX-License-Identifier: GPL-3.0-or-later
"""Matrix products in fp8 with the GPU's kernels, eager and compiled."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from rdm_trainer.distributed.tensor_parallel.float8 import Float8Weight
from rdm_trainer.distributed.tensor_parallel.layers import ColumnParallelLinear
from rdm_trainer.distributed.topology import Topology


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("compiled", [False, True])
def test_fp8_layer_is_close_to_bf16(recipe: Literal["tensorwise", "rowwise"], compiled: bool) -> None:
    torch.manual_seed(1)
    layer = ColumnParallelLinear(1024, 1536, Topology.single(), 1.0, stacked=2)
    for weight in layer.parameters():
        weight.data = torch.randn(weight.shape, device="cuda", dtype=torch.bfloat16)
    inputs = torch.randn(4, 512, 1024, device="cuda", dtype=torch.bfloat16)
    # The next layer's kernel need not write gradients row by row.
    gradient = torch.randn(4, 3072, 512, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    found = []
    for fp8 in (False, True):
        if fp8:
            layer.float8 = Float8Weight(layer.weight, recipe, compiled=compiled)
            layer.float8.update(layer.weight)
            if compiled:
                layer.compile(dynamic=False)
        states = inputs.clone().requires_grad_()
        layer.zero_grad()
        output = layer(states)
        output.backward(gradient)
        assert layer.bias is not None
        found.append((output, states.grad, layer.weight.grad, layer.bias.grad))
    *products, bias = zip(*found, strict=True)
    for bf16, fp8_result in products:
        error = float((fp8_result - bf16).detach().float().norm() / bf16.detach().float().norm())
        assert 0.005 < error < 0.1
    torch.testing.assert_close(*bias, rtol=2**-7, atol=0.5)
