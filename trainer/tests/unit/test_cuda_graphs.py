# SPDX-License-Identifier: GPL-3.0-or-later
"""The micro-batch that a CUDA graph reads."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

from rdm_trainer.engines.native.cuda_graph import GraphedPasses, StaticBatch


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


class _Recorded(GraphedPasses):
    """Records what a graph would compute."""

    def __init__(self) -> None:
        super().__init__(nn.Identity(), torch.device("cpu"), lambda _kind, _name: contextlib.nullcontext())
        self.runs: list[tuple[StaticBatch, list[int]]] = []

    def _run(self, batch: StaticBatch) -> None:
        assert isinstance(batch.inputs, torch.Tensor)
        self.runs.append((batch, batch.inputs[:, 0].tolist()))


def test_micro_batches_of_alternating_shapes_take_two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    stream: Any = lambda _device: None  # noqa: E731
    monkeypatch.setattr(torch.cuda, "Stream", stream)
    graphed = _Recorded()
    graphed.train(iter([_batch(2, 0), _batch(1, 1), _batch(2, 2), _batch(1, 3)]), 4)
    two, one = graphed.batches
    assert graphed.runs == [(two, [0, 0]), (one, [1]), (two, [2, 2]), (one, [3])]
