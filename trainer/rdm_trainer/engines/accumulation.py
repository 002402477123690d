# SPDX-License-Identifier: GPL-3.0-or-later
"""Accumulation of micro-batch gradients in fp32."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

__all__ = ["accumulate"]

# Compiled kernels see a large gradient as rows of this many elements, so that they know its alignment.
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
        total: The sum, float32, contiguous.
        gradient: The gradient, of the same shape.
        first: It is the first of a step, so copy it instead of adding it to zeros.
        compiled: Compiled kernels may process large gradients.
    """
    take = _copy if first else _add
    rows, rest = divmod(total.numel(), _ROW)
    if compiled and rows >= _ROW and not rest:
        # PyTorch's own mixed-type kernels reach only half of the memory bandwidth.
        _compiled(take)(total.view(rows, _ROW), gradient.reshape(rows, _ROW))
    else:
        take(total, gradient)
