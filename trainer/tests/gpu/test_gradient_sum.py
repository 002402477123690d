# SPDX-License-Identifier: GPL-3.0-or-later
"""An embedding's gradient on a GPU, whose additions by index come in any order."""

from __future__ import annotations

import pytest
import torch

from rdm_trainer.distributed.gradient_sum import add_embedding_gradient


# The kernels for few and for many tokens differ.
@pytest.mark.parametrize("count", [300, 8192])
@pytest.mark.parametrize("frequent", [0.0, 0.75, 1.0])
def test_embedding_adds_to_the_dense_gradient_deterministically(frequent: float, count: int) -> None:
    generator = torch.Generator("cuda").manual_seed(5)
    tokens = torch.randint(1000, (2, count // 2), generator=generator, device="cuda")
    tokens[torch.rand(tokens.shape, generator=generator, device="cuda") < frequent] = 7
    gradient = torch.randn(*tokens.shape, 64, generator=generator, device="cuda").bfloat16()
    begin = torch.randn(1000, 64, generator=generator, device="cuda")
    dense = torch.ops.aten.embedding_dense_backward(gradient, tokens, 1000, -1, False)
    totals = []
    for _ in range(5):
        totals.append(begin.clone())
        add_embedding_gradient(totals[-1], gradient, tokens)

    assert all(torch.equal(total, totals[0]) for total in totals)
    torch.testing.assert_close(totals[0], begin + dense.float(), rtol=1e-6, atol=1e-6)
