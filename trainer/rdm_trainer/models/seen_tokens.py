# SPDX-License-Identifier: GPL-3.0-or-later
"""Causal attention limited to a token's document, or to a sliding window.

Documents follow each other in a sample, so a token attends to a contiguous range of tokens that ends with
itself, and the first of them defines the range. On GPUs, the kernel of ``flex_attention`` skips the blocks of
keys to which no query of a block attends. Elsewhere a full mask is built.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional


def first_seen(
    places: torch.Tensor, starts: torch.Tensor | None = None, window: int | None = None
) -> torch.Tensor:
    """Return the first token that each token attends to, int64 [batch or 1, sequence].

    Args:
        places: Positions of the tokens in the sample, int64 [sequence].
        starts: Where their documents begin, int64 [batch, sequence]; None if documents do not matter.
        window: Maximum tokens that each attends to, including itself; None for all before it.
    """
    if window is None:
        assert starts is not None
        return starts
    first = (places - window + 1).clamp_min(0)[None]
    return first if starts is None else torch.maximum(first, starts)


def mask_of(first: torch.Tensor, places: torch.Tensor, keys: int) -> torch.Tensor:
    """Return bool [batch or 1, 1, queries, keys], True where a query attends to a key."""
    seen = torch.arange(keys, device=first.device)
    return ((seen >= first[..., None]) & (seen <= places[:, None]))[:, None]


def attention_of_last(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float = 0.0,
    scale: float | None = None,
) -> torch.Tensor:
    """Return causal attention of the last tokens of a sequence.

    Args:
        query: Queries of these tokens, [batch, heads, tokens, head size].
        key: Keys of all tokens up to the last, [batch, key-value heads, sequence, head size].
        value: Values, of the keys' shape.
        dropout: Probability of dropout.
        scale: Factor on the scores; 1 / sqrt(head size) by default.
    """
    tokens, size = query.shape[2:]
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    if query.is_cuda and torch.version.hip is None and is_half and size % 8 == 0 and size <= 256:
        # Only this kernel aligns its causal mask with the last key instead of the first.
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        mixed: torch.Tensor = flash(query, key, value, dropout, True, scale=scale)[0]
        return mixed
    length = key.shape[2]
    seen = torch.ones(tokens, length, dtype=torch.bool, device=query.device).tril(length - tokens)
    return functional.scaled_dot_product_attention(
        query, key, value, seen, dropout, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    first: torch.Tensor,
    places: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Return attention of tokens to their sample, each from its first token up to itself.

    Args:
        query: [batch, heads, tokens, head size].
        key: [batch, key-value heads, sequence, head size].
        value: Values, of the keys' shape.
        first: The first tokens, from :func:`first_seen`.
        places: Positions of the queries in the sequence, int64 [tokens]; None if they are the whole sequence.
        scale: Factor on the scores; 1 / sqrt(head size) by default.
    """
    # Imported late: it takes a second, and only GPUs need it.
    from torch.nn.attention import flex_attention as flex

    batch, _, tokens, _ = query.shape
    first = first.expand(batch, tokens)

    def sees(sample: Any, _head: Any, own: Any, other: Any) -> Any:
        last = own if places is None else places[own]
        return (other <= last) & (other >= first[sample, own])

    # Code that is being compiled inlines these functions.
    inlined = torch.compiler.is_compiling()
    make: Any = flex.create_block_mask if inlined else _compiled(flex.create_block_mask)
    attention: Any = flex.flex_attention if inlined else _compiled(flex.flex_attention)
    blocks = make(sees, batch, None, tokens, key.shape[2], device=query.device)
    mixed: torch.Tensor = attention(
        query, key, value, block_mask=blocks, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return mixed


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)
