# SPDX-License-Identifier: GPL-3.0-or-later
"""Sums of the gradients of micro-batches in fp32."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

__all__ = ["accumulate"]

# Elements of a row of a large gradient where compiled kernels take it: they know then how it is aligned.
_ROW = 1024


def _copy(total: torch.Tensor, gradient: torch.Tensor) -> None:
    total.copy_(gradient)


def _add(total: torch.Tensor, gradient: torch.Tensor) -> None:
    total.add_(gradient)


@functools.cache
def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    return torch.compile(function)


def accumulate(total: torch.Tensor, gradient: torch.Tensor, *, first: bool, compiled: bool) -> None:
    """Add a gradient to its sum.

    Args:
        total: float32, contiguous.
        gradient: Of the same shape.
        first: It is the first of a step: copied instead of added to zeros.
        compiled: Large ones may be taken by compiled kernels.
    """
    take = _copy if first else _add
    rows, rest = divmod(total.numel(), _ROW)
    if compiled and rows >= _ROW and not rest:
        # PyTorch's own kernels between two types reach half of the memory's bandwidth.
        _compiled(take)(total.view(rows, _ROW), gradient.reshape(rows, _ROW))
    else:
        take(total, gradient)
