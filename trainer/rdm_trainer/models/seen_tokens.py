# SPDX-License-Identifier: GPL-3.0-or-later
"""Causal attention that ends at a document's beginning, or at a window's.

Documents lie one behind the other in a sample, so what a token sees is a run of tokens that ends with itself,
and the first of them says all about it. On GPUs the kernel of ``flex_attention`` skips the blocks of keys
that no query of a block sees; elsewhere the mask is made in full.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["first_seen", "flex_attention", "mask_of"]


def first_seen(
    places: torch.Tensor, starts: torch.Tensor | None = None, window: int | None = None
) -> torch.Tensor:
    """Return the first token that each token sees, int64 [batch or 1, sequence].

    Args:
        places: Of the tokens in the sample, int64 [sequence].
        starts: Where their documents begin, int64 [batch, sequence]; None: documents do not matter.
        window: Tokens that each sees at most, itself included; None: all before it.
    """
    if window is None:
        assert starts is not None
        return starts
    first = (places - window + 1).clamp_min(0)[None]
    return first if starts is None else torch.maximum(first, starts)


def mask_of(first: torch.Tensor, places: torch.Tensor, keys: int) -> torch.Tensor:
    """Return bool [batch or 1, 1, queries, keys]: True where a token at a place sees a key."""
    seen = torch.arange(keys, device=first.device)
    return ((seen >= first[..., None]) & (seen <= places[:, None]))[:, None]


def flex_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, first: torch.Tensor
) -> torch.Tensor:
    """Return attention of whole samples, of which each token sees those from its first one to itself.

    Args:
        query: [batch, heads, sequence, head size].
        key: [batch, key-value heads, sequence, head size].
        value: Of the keys' shape.
        first: As :func:`first_seen` gives it.
    """
    # It takes a second to import, which only GPUs need.
    from torch.nn.attention import flex_attention as flex

    batch, _, length, _ = query.shape
    first = first.expand(batch, length)

    def sees(sample: Any, _head: Any, own: Any, other: Any) -> Any:
        return (other <= own) & (other >= first[sample, own])

    # What is compiled already takes these in as they are.
    inlined = torch.compiler.is_compiling()
    make: Any = flex.create_block_mask if inlined else _compiled(flex.create_block_mask)
    attention: Any = flex.flex_attention if inlined else _compiled(flex.flex_attention)
    blocks = make(sees, batch, None, length, length, device=query.device)
    mixed: torch.Tensor = attention(
        query, key, value, block_mask=blocks, enable_gqa=query.shape[1] != key.shape[1]
    )
    return mixed


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)
