# SPDX-License-Identifier: GPL-3.0-or-later
"""Linear layers and the vocabulary's matrix, sharded over the tensor-parallel ranks.

Source: Shoeybi et al., "Megatron-LM" (arXiv 1909.08053), section 3: a matrix product sharded by columns,
followed by one sharded by rows, needs one all-reduce in each direction. A column-parallel layer sums the
gradient of its input, a row-parallel one its output; the states in between stay sharded.

With sequence parallelism, the states outside of these pairs, [batch, tokens, hidden], are sharded by tokens:
a column-parallel layer gathers its input, and a row-parallel one reduce-scatters its output. Source:
Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), section 4.2.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives
from torch import nn
from torch.nn import functional

from rdm_trainer.compute_time import waiting
from rdm_trainer.distributed.gradient_sum import (
    GradientSum,
    accumulate,
    add_embedding_gradient,
    add_weight_gradient,
)
from rdm_trainer.distributed.parameters import ShardSpec, parameter
from rdm_trainer.distributed.tensor_parallel import float8
from rdm_trainer.distributed.tensor_parallel.cross_entropy import linear_cross_entropy
from rdm_trainer.distributed.tensor_parallel.float8 import Float8Weight
from rdm_trainer.distributed.topology import Topology

# The dimension of tokens in states [batch, tokens, hidden].
_TOKENS = 1


def begin_sum(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """Begin an all-reduce, which overlaps with compute until end_collective.

    torch.compile includes these collectives in its graph; the import above registers their results' shapes.
    """
    pending: torch.Tensor = torch.ops._c10d_functional.all_reduce(
        tensor.contiguous(), "sum", group.group_name
    )
    return pending


def begin_gather(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """Begin to concatenate the ranks' tensors in the first dimension."""
    pending: torch.Tensor = torch.ops._c10d_functional.all_gather_into_tensor(
        tensor.contiguous(), group.size(), group.group_name
    )
    return pending


def begin_scatter(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """Begin to give each rank its part of the sum, split in the first dimension."""
    pending: torch.Tensor = torch.ops._c10d_functional.reduce_scatter_tensor(
        tensor.contiguous(), "sum", group.size(), group.group_name
    )
    return pending


def end_collective(pending: torch.Tensor) -> torch.Tensor:
    """Return the result, which must not be read before."""
    done: torch.Tensor
    if torch.compiler.is_compiling():
        done = torch.ops._c10d_functional.wait_tensor(pending)
        return done
    with waiting():
        done = torch.ops._c10d_functional.wait_tensor(pending)
    return done


def end_gather(pending: torch.Tensor, group: Any, dimension: int) -> torch.Tensor:
    """Wait for :func:`begin_gather`, and concatenate the ranks' parts in a dimension, counted from 0."""
    parts: torch.Tensor = end_collective(pending).unflatten(0, (group.size(), -1))
    return parts.movedim(0, dimension).flatten(dimension, dimension + 1)


def begin_scatter_of(whole: torch.Tensor, group: Any, dimension: int) -> torch.Tensor:
    """Begin to reduce-scatter a tensor in a dimension, counted from 0."""
    parts = whole.unflatten(dimension, (group.size(), -1)).movedim(dimension, 0)
    return begin_scatter(parts.flatten(0, 1), group)


class _Linear(torch.autograd.Function):
    """Linear layer in fp8, one whose input's gradient is summed over the ranks, or one with a gradient sum.

    The sum over the ranks overlaps with the computation of the weight's gradient. If tokens are sharded, it
    saves only this rank's tokens. The backward pass gathers the others again while it computes the input's
    gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        group: Any,
        sequence_parallel: bool,
        rows: torch.Tensor | None,
        row_scale: torch.Tensor | None,
        columns: torch.Tensor | None,
        column_scale: torch.Tensor | None,
        total: torch.Tensor | None,
        _token: torch.Tensor | None,
    ) -> torch.Tensor:
        ctx.group, ctx.sequence_parallel = group, sequence_parallel
        if columns is None:
            ctx.save_for_backward(hidden_states, weight, total, None)
        else:
            ctx.save_for_backward(hidden_states, columns, None, column_scale)
        if sequence_parallel:
            hidden_states = end_gather(begin_gather(hidden_states, group), group, _TOKENS)
        if rows is None or row_scale is None:
            return functional.linear(hidden_states, weight, bias)
        return float8.output(hidden_states, rows, row_scale, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_states, weight, total, scale = ctx.saved_tensors
        gradient, group = gradients[0], ctx.group
        gathering = None
        if ctx.sequence_parallel:
            if torch.compiler.is_compiling():
                # If its operand did not depend on the gradient, the compiler would merge this gather with the
                # one of the forward pass, and keep the result.
                hidden_states = torch.where(gradient.flatten()[0] == 0, hidden_states, hidden_states)
            gathering = begin_gather(hidden_states, group)
        if scale is None:
            input_gradient = gradient @ weight
        else:
            input_gradient = float8.input_gradient(gradient, weight, scale)
        if gathering is not None:
            hidden_states = end_gather(gathering, group, _TOKENS)
            pending = begin_scatter_of(input_gradient, group, _TOKENS)
        elif group is not None:
            pending = begin_sum(input_gradient, group)
        rows = gradient.flatten(0, -2)
        weight_gradient = token_gradient = None
        if scale is not None:
            weight_gradient = float8.weight_gradient(gradient, hidden_states, rowwise=bool(scale.dim()))
        elif total is not None:
            token_gradient = add_weight_gradient(total, rows, hidden_states.flatten(0, -2))
        else:
            weight_gradient = rows.t() @ hidden_states.flatten(0, -2)
        bias_gradient = rows.sum(dim=0) if ctx.needs_input_grad[2] else None
        if group is not None:
            input_gradient = end_collective(pending)
        return input_gradient, weight_gradient, bias_gradient, *(None,) * 7, token_gradient


def _linear(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    float8_weight: Float8Weight | None,
    gradient_sum: GradientSum | None,
    group: Any = None,
    sequence_parallel: bool = False,
) -> torch.Tensor:
    """Apply a linear layer.

    Args:
        hidden_states: Its inputs [..., inputs].
        weight: [outputs, inputs].
        bias: [outputs].
        float8_weight: The weight in fp8, to compute in fp8.
        gradient_sum: Where the backward pass adds the gradient of the weight, if not in fp8.
        group: The ranks over which the gradient of the inputs is summed.
        sequence_parallel: The ranks shard the tokens of the inputs.
    """
    if float8_weight is not None:
        more: Any = (
            float8_weight.rows,
            float8_weight.row_scale,
            float8_weight.columns,
            float8_weight.column_scale,
            None,
            None,
        )
    elif gradient_sum is not None:
        more = (*(None,) * 4, gradient_sum.total.flatten(0, -2), gradient_sum.token)
    elif group is None:
        return functional.linear(hidden_states, weight, bias)
    else:
        more = (None,) * 6
    output: torch.Tensor = _Linear.apply(hidden_states, weight, bias, group, sequence_parallel, *more)
    return output


class _BeginSum(torch.autograd.Function):
    """Begin an all-reduce or, with sequence parallelism, a reduce-scatter over tokens."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any, sequence_parallel: bool) -> torch.Tensor:
        ctx.group, ctx.sequence_parallel = group, sequence_parallel
        if sequence_parallel:
            return begin_scatter_of(tensor, group, _TOKENS)
        return begin_sum(tensor, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        gradient = gradients[0]
        if ctx.sequence_parallel:
            gradient = end_gather(begin_gather(gradient, ctx.group), ctx.group, _TOKENS)
        return gradient, None, None


class _EndSum(torch.autograd.Function):
    """Wait for a pending sum."""

    @staticmethod
    def forward(_ctx: Any, pending: torch.Tensor) -> torch.Tensor:
        return end_collective(pending).view_as(pending)

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class _SumGradient(torch.autograd.Function):
    """A replicated tensor that each rank applies to its own part; its gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return end_collective(begin_sum(gradients[0], ctx.group)), None


def shared_tensor(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """Return a replicated tensor for use on sharded data.

    Args:
        tensor: The tensor, the same on all ranks.
        group: The tensor ranks, over which its gradient is summed; ``None`` if there is only one.
    """
    if group is None:
        return tensor
    shared: torch.Tensor = _SumGradient.apply(tensor, group)
    return shared


class _Gather(torch.autograd.Function):
    """Concatenate the ranks' parts; the backward pass sums all ranks' gradients of each part."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: Any, dimension: int) -> torch.Tensor:
        ctx.group, ctx.dimension = group, dimension
        return end_gather(begin_gather(part, group), group, dimension)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return end_collective(begin_scatter_of(gradients[0], ctx.group, ctx.dimension)), None, None


def gathered(part: torch.Tensor, group: Any, dimension: int) -> torch.Tensor:
    """Return the concatenated parts of all ranks of a group, in the ranks' order.

    Args:
        part: This rank's part.
        group: The ranks; each uses what it needs of the whole.
        dimension: The dimension of concatenation, from 0.
    """
    whole: torch.Tensor = _Gather.apply(part, group, dimension)
    return whole


def summed_output(part: torch.Tensor, group: Any, *, sequence_parallel: bool = False) -> torch.Tensor:
    """Return the sum over the tensor ranks; every rank gets the sum's whole gradient.

    Args:
        part: This rank's summand; with sequence parallelism [batch, tokens, hidden].
        group: The tensor ranks.
        sequence_parallel: Return only this rank's tokens of the sum, and expect the gradient of only these.
    """
    summed: torch.Tensor = _EndSum.apply(_BeginSum.apply(part, group, sequence_parallel))
    return summed


class ColumnParallelLinear(nn.Module):
    """``y = x A + b`` with the outputs sharded over the tensor ranks.

    Args:
        inputs: Features of the input, replicated on every rank.
        outputs: Features of the whole output.
        topology: This rank's place, with the tensor axis.
        std: Standard deviation of the initial weights.
        bias: Add b.
        stacked: Number of matrices in one, each sharded alike: the weight is [stacked, outputs, inputs], and
            a rank's outputs are ordered by matrix.

    Attributes:
        float8: The weight in fp8, if the layer computes in fp8.
        gradient_sum: The sum of the weight's gradients, if backward passes add to it.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        topology: Topology,
        std: float,
        *,
        bias: bool = True,
        stacked: int | None = None,
    ) -> None:
        super().__init__()
        rank, ranks = topology.tensor_rank, topology.tensor
        several, divided = ((), 0) if stacked is None else ((stacked,), 1)
        self.weight = parameter(
            ShardSpec((*several, outputs, inputs), divided, rank, ranks, std=std, decays=True)
        )
        self.bias = parameter(ShardSpec((*several, outputs), divided, rank, ranks)) if bias else None
        self.float8: Float8Weight | None = None
        self.gradient_sum: GradientSum | None = None
        self.group = topology.tensor_group if topology.tensor > 1 else None
        self.sequence_parallel = topology.sequence_parallel

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map [..., inputs] to this rank's [..., outputs / tensor], or [..., stacked x outputs / tensor]."""
        weight = self.weight.flatten(0, -2)
        bias = None if self.bias is None else self.bias.flatten()
        return _linear(
            hidden_states, weight, bias, self.float8, self.gradient_sum, self.group, self.sequence_parallel
        )


class RowParallelLinear(nn.Module):
    """``y = x A + b`` with the inputs sharded over the tensor ranks.

    Args:
        inputs: Features of the whole input; each rank has its part.
        outputs: Features of the output, whole on every rank.
        topology: This rank's place, with the tensor axis.
        std: Standard deviation of the initial weights.
        bias: Add b.

    Attributes:
        float8: The weight in fp8, if the layer computes in fp8.
        gradient_sum: The sum of the weight's gradients, if backward passes add to it.
    """

    def __init__(
        self, inputs: int, outputs: int, topology: Topology, std: float, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.weight = parameter(
            ShardSpec((outputs, inputs), 1, topology.tensor_rank, topology.tensor, std=std, decays=True)
        )
        self.bias = parameter(ShardSpec((outputs,))) if bias else None
        self.float8: Float8Weight | None = None
        self.gradient_sum: GradientSum | None = None
        self.group = topology.tensor_group if topology.tensor > 1 else None
        self.sequence_parallel = topology.sequence_parallel

    def forward(
        self, hidden_states: torch.Tensor, step: Literal["begin", "end"] | None = None
    ) -> torch.Tensor:
        """Map this rank's [..., inputs / tensor] to the whole [..., outputs].

        Args:
            hidden_states: The inputs or, for ``end``, the result of ``begin``.
            step: With several ranks, do only one of two steps, so that other compute overlaps with the sum
                over the ranks. The result of ``begin`` must not be read before ``end``.
        """
        if self.group is None:
            return _linear(hidden_states, self.weight, self.bias, self.float8, self.gradient_sum)
        if step != "end":
            part = _linear(hidden_states, self.weight, None, self.float8, self.gradient_sum)
            hidden_states = _BeginSum.apply(part, self.group, self.sequence_parallel)
        if step != "begin":
            hidden_states = _EndSum.apply(hidden_states)
            if self.bias is not None:
                hidden_states = hidden_states + self.bias
        return hidden_states


class _Embedding(torch.autograd.Function):
    """The rows of tokens; the backward pass adds to the sum of the weight's gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        tokens: torch.Tensor,
        weight: torch.Tensor,
        total: torch.Tensor,
        _token: torch.Tensor,
        compiled: bool,
    ) -> torch.Tensor:
        # Autograd refuses a saved tensor that has changed, and another call's gradient may be added to the
        # sum before this backward pass.
        ctx.total, ctx.compiled = total, compiled
        ctx.save_for_backward(tokens)
        return functional.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (tokens,) = ctx.saved_tensors
        # On an H200, the dense gradient is faster for more than about a quarter of the rows.
        if 4 * tokens.numel() <= len(ctx.total):
            return *(None,) * 3, add_embedding_gradient(ctx.total, gradients[0], tokens), None
        # Sums of fp32 rows by index would take long where one token is frequent.
        update = torch.ops.aten.embedding_dense_backward(gradients[0], tokens, len(ctx.total), -1, False)
        accumulate(ctx.total, update, compiled=ctx.compiled)
        return *(None,) * 3, ctx.total.new_empty(()), None


class VocabParallelEmbedding(nn.Module):
    """The vocabulary's matrix, sharded by tokens: embeds tokens and, as the head, returns logits or the loss.

    One module does both because the two may share the matrix, and ZeRO-3 gathers the parameters of the
    module that is called.

    Args:
        vocabulary: Number of tokens; later rows of the matrix are padding, which no token uses.
        padded: Rows of the whole matrix.
        hidden: Features.
        topology: This rank's place, with the tensor axis.
        std: Standard deviation of the initial weights.
        compiled: Compile the element-wise part of the loss.

    Attributes:
        gradient_sum: The sum of the weight's gradients, if backward passes add to it.
    """

    def __init__(
        self,
        vocabulary: int,
        padded: int,
        hidden: int,
        topology: Topology,
        std: float,
        *,
        compiled: bool = False,
    ) -> None:
        super().__init__()
        self.weight = parameter(
            ShardSpec(
                (padded, hidden),
                dimension=0,
                index=topology.tensor_rank,
                parts=topology.tensor,
                std=std,
                vocabulary=True,
                decays=True,
            )
        )
        self.gradient_sum: GradientSum | None = None
        self.group = topology.tensor_group if topology.tensor > 1 else None
        self.sequence_parallel = topology.sequence_parallel
        self.first = topology.tensor_rank * (padded // topology.tensor)
        self.valid = max(0, min(padded // topology.tensor, vocabulary - self.first))
        self.vocabulary = vocabulary
        self.compiled = compiled

    def forward(
        self,
        inputs: torch.Tensor,
        labels: tuple[torch.Tensor, ...] | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Embed tokens or, as the head, return the loss if there are labels and the logits otherwise.

        Args:
            inputs: Tokens int64 [...], to return their rows [..., hidden]; or the final hidden states
                [..., hidden].
            labels: Next tokens int64 and loss mask float32, both of the states' shape without features, and
                the loss's divisor if it is not the mask's sum.
            bias: This rank's part of the head's bias [padded vocabulary / tensor]; None adds none.
        """
        if not inputs.is_floating_point():
            return self._look_up(inputs)
        if self.sequence_parallel:
            inputs = gathered(inputs, self.group, _TOKENS)
        return self.logits(inputs, bias) if labels is None else self.loss(inputs, labels, bias)

    @torch.no_grad()
    def logits(self, hidden_states: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return the logits [..., vocabulary] of hidden states [..., hidden], whole on each rank.

        They have no padding and no gradient. Training uses :meth:`loss`, which never holds all logits.
        """
        own = functional.linear(hidden_states, self.weight, bias)
        if self.group is None:
            return own[..., : self.valid]
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, own.contiguous(), group=self.group)
        return torch.cat(parts, dim=-1)[..., : self.vocabulary]

    def loss(
        self,
        hidden_states: torch.Tensor,
        labels: tuple[torch.Tensor, ...],
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the mean cross entropy of hidden states [..., hidden]; the rest as for :meth:`forward`."""
        return linear_cross_entropy(
            hidden_states,
            self.weight,
            *labels,
            first=self.first,
            valid=self.valid,
            group=self.group,
            # With sequence parallelism, the backward pass of the states' gather sums the gradient.
            sums_gradient=not self.sequence_parallel,
            compiled=self.compiled,
            gradient_sum=self.gradient_sum,
            bias=bias,
        )

    def _rows(self, tokens: torch.Tensor) -> torch.Tensor:
        one = self.gradient_sum
        if one is None:
            return functional.embedding(tokens, self.weight)
        rows: torch.Tensor = _Embedding.apply(tokens, self.weight, one.total, one.token, self.compiled)
        return rows

    def _look_up(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.group is None:
            return self._rows(tokens)
        local = tokens - self.first
        outside = (local < 0) | (local >= self.weight.shape[0])
        rows = self._rows(local.masked_fill(outside, 0))
        own = rows.masked_fill(outside.unsqueeze(-1), 0.0)
        return summed_output(own, self.group, sequence_parallel=self.sequence_parallel)
