# SPDX-License-Identifier: GPL-3.0-or-later
"""The properties of an engine's step that determine its time. Each engine states its own next to its code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineStep:
    """What an engine sends and when, and how much of it overlaps with compute; the schedule is 1F1B.

    Args:
        hidden_sends: The share of a stage's sends and receives that overlaps with compute, from 0 to 1.
        gradient_bytes: Bytes of one gradient when replicas reduce it.
        reduces_each_micro_batch: Gradients are reduced after each micro-batch, not once per step.
        shards_optimiser: Each replica receives the summed gradients of its part of the weights, updates that
            part, and gathers the other parts after the step.
        hidden_reduction: The share of a backward pass that overlaps with reducing gradients, from 0 to 1.
        weight_bytes: Bytes of one weight when it is gathered.
        gathers_each_micro_batch: How often weights are gathered for a micro-batch instead of after the step.
        hidden_gathers: The share of a micro-batch that overlaps with gathering weights, from 0 to 1; the
            share of its forward pass if weights are gathered after the step.
        tied_bytes: Bytes of one gradient of a tied embedding between the stages that hold it.
        exchange_bytes: Bytes of one element of a token's row on its way to an expert or back.
        mean_bytes: Bytes of one non-expert gradient when a backward pass averages it over the expert axis;
            0 if the gradient reduction treats these ranks as replicas.
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
    exchange_bytes: int
    mean_bytes: int
