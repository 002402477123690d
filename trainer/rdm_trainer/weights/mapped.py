# SPDX-License-Identifier: GPL-3.0-or-later
"""Maps one of our parameters to another format's tensors; reorders heads, and pads vocabularies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Mapped:
    """One of our parameters, and the other format's tensors for it.

    Attributes:
        ours: Its name in the whole model.
        theirs: The other tensors' names.
        join: Makes our parameter from their tensors.
        split: Makes their tensors from our parameter.
    """

    ours: str
    theirs: tuple[str, ...]
    join: Callable[[Tensors], torch.Tensor] = lambda parts: parts[0]
    split: Callable[[torch.Tensor], Tensors] = lambda whole: (whole,)


def join_heads(groups: int, parts: Tensors) -> torch.Tensor:
    """Join queries, keys and values, or keys and values, by key-value head.

    Args:
        groups: Key-value heads.
        parts: Each is [its heads x head size, ...].
    """
    return torch.cat([part.unflatten(0, (groups, -1)) for part in parts], dim=1).flatten(0, 1)


def split_heads(groups: int, head_size: int, whole: torch.Tensor, parts: int = 3) -> Tensors:
    """Undo :func:`join_heads`: all parts but the first have one head of each group."""
    by_group = whole.unflatten(0, (groups, -1))
    sizes = (by_group.shape[1] - (parts - 1) * head_size, *[head_size] * (parts - 1))
    return tuple(part.flatten(0, 1) for part in by_group.split(sizes, dim=1))


def with_rows(whole: torch.Tensor, rows: int) -> torch.Tensor:
    """Return a vocabulary's weight [tokens, ...] with this many rows; those after the tokens are 0."""
    return torch.cat((whole, whole.new_zeros(rows - len(whole), *whole.shape[1:])))
