# SPDX-License-Identifier: GPL-3.0-or-later
"""How an engine takes a step, as far as its time depends on it. Engines state theirs beside their code."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EngineStep"]


@dataclass(frozen=True)
class EngineStep:
    """What an engine sends when, and what of that it hides behind computing. The pipeline's schedule is 1F1B.

    Args:
        hidden_sends: The share of a stage's sends and receives in which it computes, from 0 to 1.
        gradient_bytes: Of one gradient on its way to the other replicas.
        reduces_each_micro_batch: Gradients are reduced after each micro-batch, not once in a step.
        shards_optimiser: A replica updates its part of the weights; it gets the sum of that part alone, and
            gathers the weights after the step.
        hidden_reduction: The share of a backward pass in which gradients are reduced meanwhile, from 0 to 1.
        weight_bytes: Of one weight that is gathered.
        gathers_each_micro_batch: How often weights are gathered for a micro-batch instead of after the step.
        hidden_gathers: The share of a micro-batch in which weights are gathered meanwhile, from 0 to 1; of
            its forward pass, where they are gathered after the step.
        tied_bytes: Of one gradient of a tied embedding, on its way between the stages that hold it.
        exchanges: All-to-alls in a pass of a block with experts, of tokens' rows: to their experts, and back.
        exchange_bytes: Of one element of such a row.
        hidden_exchanges: The share of an exchange in which a rank computes, from 0 to 1.
        mean_bytes: Of one gradient, no expert's, on its way to the mean over the expert axis in a backward
            pass; 0 where these ranks are replicas to the reduction of gradients.
    """

    hidden_sends: float
    gradient_bytes: int
    reduces_each_micro_batch: bool
    shards_optimiser: bool
    hidden_reduction: float
    weight_bytes: int
    gathers_each_micro_batch: int
    hidden_gathers: float
    tied_bytes: int
    exchanges: int
    exchange_bytes: int
    hidden_exchanges: float
    mean_bytes: int
