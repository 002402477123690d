# SPDX-License-Identifier: GPL-3.0-or-later
"""Matrix products in fp8: their inputs are scaled to the type's range and cast, and their results are bf16.

Source: the recipes ``tensorwise`` and ``rowwise`` of torchao 0.18 (``torchao/float8/config.py``). The former
has one scale for each tensor, and gradients in e5m2. The latter has one scale for each row or column, rounded
down to a power of two, and everything in e4m3. Unlike torchao's layers, these cast a weight once a step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

# Scales of zeros stay finite.
_EPSILON = 1e-12


def _cast(
    matrix: torch.Tensor, dtype: torch.dtype, dimension: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a matrix in fp8, and the factor that undoes its scale.

    Args:
        matrix: The matrix.
        dtype: The type. No scaled value exceeds its range, so the cast needs no clamp.
        dimension: Scale along this dimension; the whole matrix alike if None.
    """
    size = matrix.abs()
    # Rows first: a compiled kernel that computes whole rows of the matrix can then find their maxima, too.
    amax = size.amax(-1).amax() if dimension is None else size.amax(dimension, keepdim=True)
    # In float64, eager and compiled code divide alike.
    scale = (torch.finfo(dtype).max / amax.double().clamp(min=_EPSILON)).float()
    if dimension is not None:
        scale = scale.log2().floor().exp2()
    return (matrix.float() * scale).to(dtype).contiguous(), scale.reciprocal()


def _product(
    left: torch.Tensor,
    right: torch.Tensor,
    left_scale: torch.Tensor,
    right_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    fast: bool = False,
) -> torch.Tensor:
    """Return ``left right + bias`` in bf16 for two row-major matrices, the right one transposed.

    Args:
        left: [rows, inner].
        right: [columns, inner].
        left_scale: The factor on the left matrix: a scalar or [rows, 1].
        right_scale: The factor on the right matrix: a scalar or [1, columns].
        bias: bf16 [columns]; only with ``fast``.
        fast: Accumulate less precisely, as all recipes do in the forward pass.
    """
    if not left.is_cuda:
        # Few use torch's kernel for a CPU, so emulate it.
        whole = (left.float() @ right.float().t()) * (left_scale * right_scale)
        return (whole if bias is None else whole + bias).bfloat16()
    product: Any = functools.partial(torch._scaled_mm, left, right.t(), out_dtype=torch.bfloat16)
    if fast or not left_scale.dim():
        result: torch.Tensor = product(
            scale_a=left_scale, scale_b=right_scale, bias=bias, use_fast_accum=fast
        )
        return result
    # Kernels with scales of rows are slow without fast accumulation.
    one = torch.ones_like(left_scale[0, 0])
    result = product(scale_a=one, scale_b=one) * (left_scale * right_scale)
    return result.bfloat16()


def output(
    inputs: torch.Tensor, rows: torch.Tensor, row_scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return a linear layer's output for its inputs [..., inputs]; see :class:`Float8Weight`."""
    matrix, scale = _cast(inputs.flatten(0, -2), torch.float8_e4m3fn, -1 if row_scale.dim() else None)
    product = _product(matrix, rows, scale, row_scale, bias, fast=True)
    return product.view(*inputs.shape[:-1], -1)


def input_gradient(gradient: torch.Tensor, columns: torch.Tensor, column_scale: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a linear layer's inputs for that of its output [..., outputs]."""
    dtype, dimension = (torch.float8_e4m3fn, -1) if column_scale.dim() else (torch.float8_e5m2, None)
    matrix, scale = _cast(gradient.flatten(0, -2), dtype, dimension)
    return _product(matrix, columns, scale, column_scale).view(*gradient.shape[:-1], -1)


def weight_gradient(gradient: torch.Tensor, inputs: torch.Tensor, *, rowwise: bool) -> torch.Tensor:
    """Return the gradient of a linear layer's weight [outputs, inputs].

    Args:
        gradient: The gradient of its output [..., outputs].
        inputs: Its inputs [..., inputs].
        rowwise: The recipe.
    """
    dtype, dimension = (torch.float8_e4m3fn, 0) if rowwise else (torch.float8_e5m2, None)
    left, left_scale = _cast(gradient.flatten(0, -2), dtype, dimension)
    right, right_scale = _cast(inputs.flatten(0, -2), torch.float8_e4m3fn, dimension)
    # torch._scaled_mm takes only matrices whose inner dimension is contiguous.
    left, right = left.t().contiguous(), right.t().contiguous()
    return _product(left, right, left_scale.t() if rowwise else left_scale, right_scale)


class Float8Weight(nn.Module):
    """Copies of a weight in fp8. They have the values of the last :meth:`update`.

    Args:
        weight: The weight bf16 [..., outputs, inputs] on its device; leading dimensions count as outputs.
        recipe: The recipe.
        compiled: Compile the cast.

    Attributes:
        rows: [outputs, inputs].
        row_scale: The factor that undoes the scale of ``rows``, fp32: a scalar, or [1, outputs].
        columns: [inputs, outputs].
        column_scale: The same for ``columns``: a scalar, or [1, inputs].
    """

    rows: torch.Tensor
    row_scale: torch.Tensor
    columns: torch.Tensor
    column_scale: torch.Tensor

    def __init__(
        self, weight: torch.Tensor, recipe: Literal["tensorwise", "rowwise"], *, compiled: bool
    ) -> None:
        super().__init__()
        self._compiled = compiled
        outputs, inputs = weight.flatten(0, -2).shape
        is_rowwise = recipe == "rowwise"
        for name, shape in (("row", (outputs, inputs)), ("column", (inputs, outputs))):
            data = torch.empty(shape, dtype=torch.float8_e4m3fn, device=weight.device)
            scale = torch.empty((1, shape[0]) if is_rowwise else (), device=weight.device)
            self.register_buffer(f"{name}s", data, persistent=False)
            self.register_buffer(f"{name}_scale", scale, persistent=False)

    @torch.no_grad()
    def update(self, weight: torch.Tensor) -> None:
        """Cast the weight."""
        update = _compiled(_update) if self._compiled else _update
        update(weight.flatten(0, -2), self.rows, self.row_scale, self.columns, self.column_scale)


def _update(
    weight: torch.Tensor,
    rows: torch.Tensor,
    row_scale: torch.Tensor,
    columns: torch.Tensor,
    column_scale: torch.Tensor,
) -> None:
    is_rowwise = bool(row_scale.dim())
    data, scale = _cast(weight, rows.dtype, -1 if is_rowwise else None)
    rows.copy_(data)
    row_scale.copy_(scale.t() if is_rowwise else scale)
    if is_rowwise:
        data, scale = _cast(weight, columns.dtype, 0)
    columns.copy_(data.t())
    column_scale.copy_(scale)


@functools.cache
def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    return torch.compile(function, dynamic=False)
