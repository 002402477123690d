# SPDX-License-Identifier: GPL-3.0-or-later
"""Causal attention of a rank's two chunks of each sequence, in blocks computed by fused kernels.

A token attends to all chunks before its own, and to its own chunk up to itself. The former is a block without
a mask, the latter a block with a square causal mask; every fused kernel has both forms. The blocks of a query
are merged by the log-sum-exp of their scores. Given the merged output and log-sum-exp, a kernel's backward
pass computes a block's contribution to the gradients of the whole.

The block of a rank's own keys needs no other rank. It is computed while keys and values are gathered, and in
the backward pass while their gradients are summed.

Source: Liu et al., "Ring Attention with Blockwise Transformers" (2023); Dubey et al., "The Llama 3 Herd of
Models" (2024), section 3.3.2.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from rdm_trainer.distributed.context_parallel import SequencePart

Kernel = Literal["cudnn", "flash", "cpu"]

# torch itself prefers cuDNN's kernel only on these GPUs, and only from this version on: older ones have a
# fault where 128 does not divide the tokens (pytorch/pytorch#169849).
_CUDNN_GPUS = ((9, 0), (10, 0), (10, 3))
_LEAST_CUDNN = 91501


def prefers_cudnn(capability: tuple[int, int], cudnn: int, tokens: int = 1) -> bool:
    """Return whether cuDNN's attention is the fastest, and right.

    Args:
        capability: Compute capability of a CUDA device.
        cudnn: The version of cuDNN, as 91501 for 9.15.1; 0 where there is none.
        tokens: A number that divides the queries and the keys of each call.
    """
    return capability in _CUDNN_GPUS and cudnn > 0 and (cudnn >= _LEAST_CUDNN or tokens % 128 == 0)


def choose_kernel(
    capability: tuple[int, int], dtype: torch.dtype, head_size: int, cudnn: int
) -> Kernel | None:
    """Return the fused kernel for a CUDA device; None if none returns a log-sum-exp.

    Args:
        capability: Its compute capability.
        dtype: Type of queries, keys and values.
        head_size: Features of a head.
        cudnn: The version of cuDNN; 0 where there is none.
    """
    is_half = dtype in (torch.float16, torch.bfloat16)
    if capability < (8, 0) or not is_half or head_size % 8 or head_size > 256:
        return None
    # torch itself trains no such heads here: FlashAttention's backward pass would need
    # more shared memory than these GPUs have. Larger heads have another kernel.
    has_less_memory = (8, 6) <= capability <= (8, 9) or (12, 0) <= capability <= (12, 1)
    if has_less_memory and 192 < head_size <= 224:
        return None
    # Beyond 128 features, what cuDNN supports differs by its version.
    return "cudnn" if prefers_cudnn(capability, cudnn) and head_size <= 128 else "flash"


@torch.compiler.assume_constant_result
def kernel_for(device: torch.device, dtype: torch.dtype, head_size: int) -> Kernel | None:
    """Return the fused kernel for this machine's device; None if none returns a log-sum-exp."""
    if device.type != "cuda" or torch.version.hip is not None:
        return "cpu" if device.type == "cpu" else None
    capability, cudnn = torch.cuda.get_device_capability(device), torch.backends.cudnn.version() or 0
    return choose_kernel(capability, dtype, head_size, cudnn)


def context_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    part: SequencePart,
    kernel: Kernel,
    scale: float | None = None,
) -> torch.Tensor:
    """Return causal attention of a rank's tokens, [batch, own tokens, heads, head size].

    Args:
        query: Queries of the rank's tokens, [batch, own tokens, heads, head size].
        key: Keys of the rank's tokens, [batch, own tokens, key-value heads, head size].
        value: Values, of the keys' shape.
        part: The rank's part of each sequence.
        kernel: The kernel that computes the blocks.
        scale: Factor on the scores; 1 / sqrt(head size) by default.
    """
    mixed: torch.Tensor = _ContextAttention.apply(query, key, value, part, kernel, scale)
    return mixed


def merged(
    one: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge the attention to the keys of two blocks.

    Args:
        one: The output for the keys of a block, [batch, tokens, heads, head size], and the log-sum-exp of its
            scores in fp32, [batch, heads, tokens] or [batch, heads, tokens, 1].
        other: The same for other keys.
    """
    weight = torch.sigmoid(other[1] - one[1]).flatten(2).transpose(1, 2)[..., None]
    # The weights are fp32, so the products and their sum are too.
    output = torch.addcmul(one[0] * (1 - weight), other[0], weight)
    return output.to(one[0].dtype), torch.logaddexp(one[1], other[1])


class _ContextAttention(torch.autograd.Function):
    """Attention in blocks: both chunks to themselves in one, and each chunk to all chunks before it."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        part: SequencePart,
        kernel: Kernel,
        scale: float | None,
    ) -> torch.Tensor:
        ctx.part, ctx.kernel, ctx.scale = part, kernel, scale
        pending = part.begin_gather(torch.cat((key, value)))
        # Copy the query, because a view would keep the whole projection alive.
        query = query.contiguous()
        own = [_as_batch(one) for one in (query, key, value)]
        outputs, sums = (one.unflatten(0, (-1, 2)) for one in _forward(kernel, scale, True, *own))
        keys, values = part.end_gather(pending).chunk(2)
        blocks = []
        for index, (chunk, before) in enumerate(zip(query.chunk(2, dim=1), part.before(query), strict=True)):
            block = outputs[:, index], sums[:, index]
            if before:
                other = _forward(kernel, scale, False, chunk, keys[:, :before], values[:, :before])
                block = merged(block, other)
            blocks.append(block)
        output, log_sum_exp = (torch.stack(both, dim=1) for both in zip(*blocks, strict=True))
        output = output.flatten(1, 2)
        ctx.save_for_backward(query, keys, values, output, log_sum_exp)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, keys, values, output, log_sum_exp = ctx.saved_tensors
        part, kernel, scale = ctx.part, ctx.kernel, ctx.scale
        gradient = gradients[0].contiguous()
        of_query = torch.zeros_like(query).unflatten(1, (2, -1))
        # Keys and values. At most two blocks add to each, so their sum is rounded once. The sum over ranks
        # and the addition of the own block round it again, as with any gradient that is reduced in 16 bits.
        of_all = keys.new_zeros((2 * keys.shape[0], *keys.shape[1:]))
        for index, before in enumerate(part.before(query)):
            if before:
                block = [one.chunk(2, dim=1)[index] for one in (gradient, query, output)]
                block += [keys[:, :before], values[:, :before]]
                of_chunk, *of_seen = _backward(kernel, scale, False, log_sum_exp[:, index], *block)
                of_query[:, index] += of_chunk
                of_all[:, :before] += torch.cat(of_seen)
        pending = part.begin_scatter(of_all)
        own = [_as_batch(one) for one in (gradient, query, output, part.own(keys), part.own(values))]
        of_chunks, *of_own = (
            one.unflatten(0, (-1, 2))
            for one in _backward(kernel, scale, True, log_sum_exp.flatten(0, 1), *own)
        )
        of_query = (of_query + of_chunks).flatten(1, 2)
        of_key, of_value = (part.end_scatter(pending) + torch.cat(of_own).flatten(1, 2)).chunk(2)
        return of_query, of_key, of_value, None, None, None


def _as_batch(chunks: torch.Tensor) -> torch.Tensor:
    """Return a rank's two chunks [batch, own tokens, ...] as [2 x batch, tokens of a chunk, ...]."""
    batch: torch.Tensor = chunks.unflatten(1, (2, -1)).flatten(0, 1)
    return batch


def _heads_first(tensor: torch.Tensor) -> torch.Tensor:
    # cuDNN's backward pass assumes that queries have the output's layout, and gradients their input's.
    return tensor.contiguous().transpose(1, 2)


def _forward(
    kernel: Kernel,
    scale: float | None,
    causal: bool,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a block's output [batch, tokens, heads, head size] and its log-sum-exp in the kernel's shape."""
    inputs = [_heads_first(one) for one in (query, key, value)]
    aten = torch.ops.aten
    if kernel == "cudnn":
        found = aten._scaled_dot_product_cudnn_attention(*inputs, None, True, 0.0, causal, scale=scale)
    elif kernel == "flash":
        found = aten._scaled_dot_product_flash_attention(*inputs, 0.0, causal, scale=scale)
    else:
        found = aten._scaled_dot_product_flash_attention_for_cpu(*inputs, 0.0, causal, scale=scale)
    return found[0].transpose(1, 2), found[1]


def _backward(
    kernel: Kernel,
    scale: float | None,
    causal: bool,
    log_sum_exp: torch.Tensor,
    gradient: torch.Tensor,
    query: torch.Tensor,
    output: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
) -> list[torch.Tensor]:
    """Return a block's contributions to the gradients of its query, key and value, with their shapes.

    Args:
        kernel: The kernel of the forward pass.
        scale: As in the forward pass.
        causal: The block has a causal mask.
        log_sum_exp: The merged log-sum-exp, in the kernel's shape.
        gradient: Gradient of the merged output.
        query: [batch, tokens, heads, head size].
        output: The merged output, of the query's shape.
        key: [batch, keys, key-value heads, head size].
        value: Values, of the keys' shape.
    """
    inputs = [_heads_first(one) for one in (gradient, query, key, value, output)]
    tokens, keys, sums = query.shape[1], key.shape[1], log_sum_exp.contiguous()
    aten = torch.ops.aten
    if kernel == "cpu":
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
        found = backward(*inputs, sums, 0.0, causal, scale=scale)
    else:
        # The random state, which a kernel reads only for dropout.
        seed = offset = query.new_empty((), dtype=torch.int64)
        if kernel == "cudnn":
            backward = aten._scaled_dot_product_cudnn_attention_backward
            mask_and_lengths = None, None, None, tokens, keys
            found = backward(*inputs, sums, seed, offset, *mask_and_lengths, 0.0, causal, scale=scale)
        else:
            backward = aten._scaled_dot_product_flash_attention_backward
            lengths = None, None, tokens, keys
            found = backward(*inputs, sums, *lengths, 0.0, causal, seed, offset, scale=scale)
    return [one.transpose(1, 2) for one in found]
