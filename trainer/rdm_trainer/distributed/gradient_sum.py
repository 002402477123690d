# SPDX-License-Identifier: GPL-3.0-or-later
"""Sums of gradients over micro-batches in fp32.

Backward passes add to a :class:`GradientSum` by themselves. Otherwise a backward pass writes a gradient in 16
bits, and another kernel reads it and adds it to the sum. cuBLAS adds a product to a sum in fp32 in about the
time that it takes to write the product in 16 bits.

Source: ``gradient_accumulation_fusion`` of Megatron-LM.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

_CUBLAS = torch.version.cuda is not None
# Compiled kernels see a large gradient as rows of this many elements, so that they know its alignment.
_ROW = 1024


def _is_small(total: torch.Tensor) -> bool:
    return total.numel() < _ROW * _ROW


@functools.cache
def _compiled_add() -> Callable[[torch.Tensor, torch.Tensor], object]:
    return torch.compile(lambda total, gradient: total.add_(gradient))


def accumulate(total: torch.Tensor, gradient: torch.Tensor, *, compiled: bool) -> None:
    """Add a gradient to its sum.

    Args:
        total: The sum, float32, contiguous.
        gradient: The gradient, of the same shape.
        compiled: Compiled kernels may process large gradients.
    """
    rows, rest = divmod(total.numel(), _ROW)
    if compiled and not _is_small(total) and not rest:
        # PyTorch's own mixed-type kernels reach only half of the memory bandwidth.
        _compiled_add()(total.view(rows, _ROW), gradient.reshape(rows, _ROW))
    else:
        total.add_(gradient)


class Accumulator:
    """Adds gradients to their sums, the small ones together at the end of a backward pass.

    A model has many norms and biases, and a kernel for each of their gradients would take longer.

    Args:
        compiled: Compiled kernels may process large gradients.
    """

    def __init__(self, *, compiled: bool) -> None:
        self._compiled = compiled
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(self, total: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add a gradient to its sum; a small one is kept until the end of the backward pass that calls this.

        Args:
            total: The sum, float32, contiguous. Each backward pass adds to it once.
            gradient: The gradient, of the same shape.
        """
        if not _is_small(total):
            accumulate(total, gradient, compiled=self._compiled)
            return
        if not self._kept:
            torch.autograd.Variable._execution_engine.queue_callback(self.flush)
        self._kept.append((total, gradient))

    @torch.no_grad()
    def flush(self) -> None:
        """Add the gradients that are kept."""
        if self._kept:
            totals, gradients = zip(*self._kept, strict=True)
            # Of the functions for lists, only the copy converts types.
            converted = [torch.empty_like(total) for total in totals]
            torch._foreach_copy_(converted, gradients)
            torch._foreach_add_(totals, converted)
            self._kept.clear()


class GradientSum:
    """The sum of a weight's gradients.

    A backward pass that adds to it returns no gradient of the weight, but one of the token.

    Args:
        total: The sum, float32, of the weight's shape, contiguous.
        on_added: Called after each backward pass that has added to the sum.

    Attributes:
        token: float32 scalar, an input of each operation that adds to the sum. Its gradient has no meaning.
    """

    def __init__(self, total: torch.Tensor, on_added: Callable[[], None]) -> None:
        # Backward passes refuse a saved tensor that has changed, and all views of a tensor count its changes.
        # A tensor made with ``data`` has a count of its own.
        self.total = total.data
        self.token = torch.zeros((), device=total.device, requires_grad=True)
        self._on_added = on_added
        self._hook = self.token.register_post_accumulate_grad_hook(self._added)

    def close(self) -> None:
        """Remove the hook, whose reference cycle Python's collector cannot see."""
        self._hook.remove()

    def _added(self, token: torch.Tensor) -> None:
        token.grad = None
        self._on_added()


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add ``left.T @ right`` to a sum.

    Args:
        total: The sum, float32 [m, n].
        left: [rows, m].
        right: [rows, n], of the same type.
    """
    if left.dtype == torch.float32:
        total.addmm_(left.t(), right)
    elif _CUBLAS and total.is_cuda:
        torch.addmm(total, left.t(), right, out_dtype=torch.float32, out=total)
    else:
        total += left.t() @ right


# The compiler must not know that the operation changes the sum: it would copy the sum before each change,
# and refuse a backward pass whose forward pass came before another one's change, as in a pipeline.
@torch.library.custom_op("rdm::add_weight_gradient", mutates_args=())
def add_weight_gradient(total: torch.Tensor, gradient: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Add a linear layer's weight gradient to its sum, and return the gradient of the sum's token.

    Args:
        total: The sum, float32 [outputs, inputs].
        gradient: The gradient of the layer's output [rows, outputs].
        inputs: The layer's inputs [rows, inputs].
    """
    # No change of the sum itself is counted.
    add_product(total.data, gradient, inputs)
    return total.new_empty(())


@add_weight_gradient.register_fake
def _(total: torch.Tensor, _gradient: torch.Tensor, _inputs: torch.Tensor) -> torch.Tensor:
    return total.new_empty(())


@torch.library.custom_op("rdm::add_embedding_gradient", mutates_args=())
def add_embedding_gradient(total: torch.Tensor, gradient: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Add an embedding's weight gradient to its sum, and return the gradient of the sum's token.

    Only rows of tokens are read and written. Results are deterministic, and shapes depend on no values.

    Args:
        total: The sum, float32 [vocabulary, features].
        gradient: The gradient of the embedding's output [..., features].
        tokens: int64 [...].
    """
    tokens = tokens.flatten()
    places = torch.arange(len(tokens), device=tokens.device)
    first = tokens.new_full((len(total),), len(tokens)).scatter_reduce_(0, tokens, places, "amin")
    # A token's gradients are summed at its first place. Its other places are zero, so that the order of the
    # additions below does not matter. Additions of the gradients themselves would be in any order.
    sums = torch.ops.aten.embedding_dense_backward(
        gradient.flatten(0, -2), first[tokens], len(tokens), -1, False
    )
    total.data.index_add_(0, tokens, sums.to(total.dtype))
    return total.new_empty(())


@add_embedding_gradient.register_fake
def _(total: torch.Tensor, _gradient: torch.Tensor, _tokens: torch.Tensor) -> torch.Tensor:
    return total.new_empty(())
