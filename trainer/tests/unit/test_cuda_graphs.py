# SPDX-License-Identifier: GPL-3.0-or-later
"""The micro-batch that a CUDA graph reads."""

from __future__ import annotations

import torch

from rdm_trainer.engines.native.cuda_graph import StaticBatch


def _batch(
    samples: int, value: int, dtype: torch.dtype = torch.int64
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    tokens = torch.full((samples, 4), value, dtype=dtype)
    return tokens, (tokens + 1, torch.tensor(value / 2))


def test_a_batch_is_copied_to_the_same_addresses() -> None:
    static = StaticBatch(_batch(2, 0))
    assert isinstance(static.inputs, torch.Tensor)
    addresses = [static.inputs.data_ptr(), *(one.data_ptr() for one in static.labels)]
    for value in (3, 4):
        static.fill(_batch(2, value))
        assert torch.equal(static.inputs, torch.full((2, 4), value))
        assert torch.equal(static.labels[0], torch.full((2, 4), value + 1))
        assert float(static.labels[1]) == value / 2
    assert [static.inputs.data_ptr(), *(one.data_ptr() for one in static.labels)] == addresses


def test_inputs_may_be_several() -> None:
    tokens, labels = _batch(2, 5)
    static = StaticBatch(((tokens, tokens + 2), labels))
    static.fill(((tokens, tokens + 2), labels))
    assert torch.equal(static.inputs[1], tokens + 2)
    assert not static.fits((tokens, labels))


def test_another_shape_or_type_does_not_fit() -> None:
    static = StaticBatch(_batch(2, 0))
    assert static.fits(_batch(2, 1))
    assert not static.fits(_batch(1, 1))
    assert not static.fits(_batch(2, 1, torch.int32))
    tokens, labels = _batch(2, 1)
    assert not static.fits((tokens, labels[:1]))
