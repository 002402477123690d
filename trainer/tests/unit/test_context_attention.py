# SPDX-License-Identifier: GPL-3.0-or-later
"""Attention in blocks equals attention over the whole sequence, and takes few calls of fused kernels."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from rdm_core.config import Config
from rdm_trainer.distributed.context_attention import (
    Kernel,
    choose_kernel,
    context_attention,
    kernel_for,
    merged,
)
from rdm_trainer.engines import engine
from tests.context_attention import GatheredContext, all_ranks, make_problem, one_rank
from tests.distributed.training import configure


@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)], ids="{0[0]} to {0[1]}".format)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_output_and_gradients_are_those_of_the_whole_sequence(
    ranks: int, heads: tuple[int, int], scale: float | None
) -> None:
    problem = make_problem(8 * 3 * ranks, heads)
    found, expected = all_ranks(problem, ranks, "cpu", scale), one_rank(problem, scale)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("ranks", [2, 4])
def test_bf16_is_as_exact_as_one_kernel(ranks: int) -> None:
    problem = make_problem(128, (6, 2), dtype=torch.bfloat16)
    exact = one_rank(problem.to(torch.float64))
    found, expected = all_ranks(problem, ranks, "cpu"), one_rank(problem)
    for ours, theirs, true in zip(found, expected, exact, strict=True):
        # The ranks' outputs and gradients are rounded once more when blocks and ranks are summed.
        assert (ours - true).norm() <= 1.5 * (theirs - true).norm()
        assert (ours - true).norm() <= 0.01 * true.norm()


def test_gradients_match_finite_differences() -> None:
    query, key, value, _ = make_problem(8, (2, 1), head_size=4, dtype=torch.float64)

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        # One rank has all keys, so all their gradients are its own.
        part = GatheredContext(0, 1, None, torch.cat((key, value)))
        return context_attention(query, key, value, part, "cpu")

    assert torch.autograd.gradcheck(attend, (query, key, value), fast_mode=True)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    magnitude=st.sampled_from([1e-3, 1.0, 30.0]),
    trailing=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_split_of_keys_merges_to_the_whole(
    sizes: list[int], magnitude: float, trailing: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = magnitude * torch.randn(2, 3, 4, sum(sizes), generator=generator)
    values = torch.randn(2, 3, sum(sizes), 5, generator=generator)

    def attended(scores: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # A kernel's log-sum-exp has one more dimension, or none.
        sums = scores.logsumexp(dim=-1, keepdim=trailing)
        return (scores.softmax(dim=-1) @ values).transpose(1, 2), sums

    blocks = zip(scores.split(sizes, dim=-1), values.split(sizes, dim=2), strict=True)
    found = attended(*next(blocks))
    for block in blocks:
        found = merged(found, attended(*block))
    for ours, whole in zip(found, attended(scores, values), strict=True):
        torch.testing.assert_close(ours, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("capability", "dtype", "head_size", "cudnn", "expected"),
    [
        ((9, 0), torch.bfloat16, 128, 91501, "cudnn"),
        ((10, 0), torch.float16, 64, 92400, "cudnn"),
        ((10, 3), torch.bfloat16, 128, 91501, "cudnn"),
        # Older ones are not right for all lengths.
        ((9, 0), torch.bfloat16, 128, 91500, "flash"),
        ((9, 0), torch.bfloat16, 128, 0, "flash"),
        ((9, 0), torch.bfloat16, 256, 91501, "flash"),
        ((12, 0), torch.bfloat16, 128, 91501, "flash"),
        ((8, 0), torch.bfloat16, 128, 91501, "flash"),
        ((9, 0), torch.bfloat16, 264, 91501, None),
        # FlashAttention trains no heads of 200 to 224 features on GPUs with less shared memory.
        ((8, 6), torch.bfloat16, 192, 0, "flash"),
        ((8, 6), torch.bfloat16, 200, 0, None),
        ((8, 9), torch.float16, 224, 91501, None),
        ((12, 0), torch.bfloat16, 208, 91501, None),
        ((8, 9), torch.bfloat16, 232, 0, "flash"),
        ((8, 0), torch.bfloat16, 224, 0, "flash"),
        ((9, 0), torch.bfloat16, 224, 91501, "flash"),
        ((9, 0), torch.bfloat16, 100, 91501, None),
        ((9, 0), torch.float32, 128, 91501, None),
        ((7, 5), torch.float16, 128, 91501, None),
    ],
)
def test_the_kernel_depends_on_device_cudnn_precision_and_head_size(
    capability: tuple[int, int],
    dtype: torch.dtype,
    head_size: int,
    cudnn: int,
    expected: Kernel | None,
) -> None:
    assert choose_kernel(capability, dtype, head_size, cudnn) == expected


@pytest.mark.parametrize(
    ("capability", "cudnn", "tokens", "expected"),
    [
        ((9, 0), 91501, 100, True),
        ((9, 0), 91002, 100, False),
        ((9, 0), 91002, 1024, True),
        ((9, 0), 0, 1024, False),
        ((8, 0), 91501, 1024, False),
    ],
)
def test_engines_prefer_cudnn_where_it_is_correct(
    capability: tuple[int, int], cudnn: int, tokens: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[bool] = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: cudnn)

    def sdpa_kernel(_order: object, *, set_priority: bool) -> contextlib.AbstractContextManager[None]:
        orders.append(set_priority)
        return contextlib.nullcontext()

    monkeypatch.setattr(engine, "sdpa_kernel", sdpa_kernel)
    before = torch.compiler.config.cache_key_tag
    with engine.attention_kernels(torch.device("cuda"), tokens):
        # What was compiled for another kernel is not taken from the cache.
        assert (torch.compiler.config.cache_key_tag != before) == expected
    assert orders == [True] * expected
    assert torch.compiler.config.cache_key_tag == before


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 1024),
        ({"parallel.context": 2}, 256),
        ({"model.kind": "bert", "parallel.context": 8}, 64),
        ({"model.kind": "t5", "model.decoder_seq_length": 640}, 128),
        ({"model.kind": "t5", "model.decoder_seq_length": 640, "parallel.context": 2}, 32),
    ],
)
def test_context_ranks_attend_with_parts_of_a_sample(changes: dict[str, Any], expected: int) -> None:
    config = configure(Config(), {"model.seq_length": 1024, **changes})
    assert engine.attended_tokens(config) == expected


def test_a_cpu_has_a_kernel_and_an_amd_gpu_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel_for(torch.device("cpu"), torch.float32, 8) == "cpu"
    assert kernel_for(torch.device("cpu"), torch.bfloat16, 100) == "cpu"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert kernel_for(torch.device("cuda"), torch.bfloat16, 128) is None


class Calls(TorchDispatchMode):
    """Records the attention kernels that are called, with the queries and keys of each."""

    def __init__(self) -> None:
        super().__init__()
        self.forward: list[tuple[torch.Size, torch.Size]] = []
        self.backward: list[tuple[torch.Size, torch.Size]] = []
        self.are_dense = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name.startswith("_scaled_dot_product"):
            is_backward = name.endswith("backward")
            query, key = args[1:3] if is_backward else args[:2]
            (self.backward if is_backward else self.forward).append((query.shape, key.shape))
            tensors = [one for one in args if isinstance(one, torch.Tensor) and one.dim() == 4]
            # A log-sum-exp is contiguous in its last dimension, too.
            self.are_dense &= all(
                one.is_contiguous() if one.shape[-1] == 1 else one.transpose(1, 2).is_contiguous()
                for one in tensors
            )
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kernel", ["cpu", "flash", "cudnn"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_calls_a_kernel_three_times_at_most(kernel: Kernel, rank: int) -> None:
    # Without a GPU, torch still checks its kernels' arguments and shapes.
    device = "cpu" if kernel == "cpu" else "meta"
    problem = make_problem(64, (6, 2), dtype=torch.bfloat16, device=device)
    part = GatheredContext(rank, 4, None, torch.cat((problem.key, problem.value)))
    # A layer's queries, keys and values are views of one projection.
    query, key, value = (torch.stack([part.own(one)] * 2, dim=3)[:, :, :, 0] for one in problem[:3])
    with Calls() as calls:
        mixed = context_attention(query, key, value, part, kernel)
        found = torch.autograd.grad(mixed, (query, key, value), part.own(problem.gradient))
    assert mixed.shape == query.shape
    assert [one.shape for one in found] == [query.shape, key.shape, value.shape]
    both = ((4, 6, 8, 8), (4, 2, 8, 8))
    before = [((2, 6, 8, 8), (2, 2, 8 * index, 8)) for index in part.chunks if index]
    # The first call needs no other rank's keys, the last one changes no other rank's gradients.
    assert calls.forward == [both, *before]
    assert calls.backward == [*before, both]
    assert calls.are_dense


@pytest.mark.parametrize("kernel", ["flash", "cudnn"])
def test_the_compiler_makes_one_graph_of_the_kernels_of_gpus(kernel: Kernel) -> None:
    problem = make_problem(32, (4, 2), dtype=torch.bfloat16, device="meta")
    part = GatheredContext(1, 2, None, torch.cat((problem.key, problem.value)).detach())
    query, key, value = (part.own(one) for one in problem[:3])
    compiled = torch.compile(context_attention, backend="aot_eager", fullgraph=True)
    mixed = compiled(query, key, value, part, kernel)
    found = torch.autograd.grad(mixed, (query, key, value), part.own(problem.gradient))
    assert mixed.shape == query.shape
    assert [one.shape for one in found] == [query.shape, key.shape, value.shape]
