# SPDX-License-Identifier: GPL-3.0-or-later
"""Which matrix products compute in fp8."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdm_core.config.schema import Config
    from rdm_core.model_spec import ModelSpec

MULTIPLE = 16
"""Kernels need all sizes of an fp8 product in multiples of this."""


def gains(recipe: str, inputs: int, outputs: int) -> bool:
    """Return whether a linear layer of this size is faster in fp8.

    Source: ``_auto_filter_for_recipe`` of torchao 0.18, from measurements on an H100.

    Args:
        recipe: ``none``, ``tensorwise`` or ``rowwise``.
        inputs: Features of its input on a rank.
        outputs: Features of its output on a rank.
    """
    if recipe == "tensorwise":
        return inputs > 4096 or outputs > 1024
    if recipe == "rowwise":
        return outputs > 2048 and inputs > 1024 and (outputs > 4096 or inputs > 2048)
    return False


def products(spec: ModelSpec, tensor: int) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of a block's linear layers on one of several tensor ranks, by their names."""
    hidden, attention = spec.hidden_size, spec.attention_size // tensor
    found = {
        "self_attention.qkv_proj": (hidden, (spec.attention_size + 2 * spec.key_value_size) // tensor),
        "self_attention.out_proj": (attention, hidden),
    }
    if spec.kind == "t5":
        found |= {
            "cross_attention.q_proj": (hidden, attention),
            "cross_attention.kv_proj": (hidden, 2 * attention),
            "cross_attention.out_proj": (attention, hidden),
        }
    if not spec.experts:
        inner = spec.ffn_size // tensor
        found["mlp.fc1"] = hidden, inner * (2 if spec.ffn == "gated" else 1)
        found["mlp.fc2"] = inner, hidden
    return found


def tokens(config: Config) -> int:
    """Return a number that divides the tokens of each product of a job."""
    samples = config.optimisation.micro_batch_size
    if config.parallel.tensor > 1 and samples % 2 == 0:
        # Blocks overlap one half's compute with the other half's all-reduce.
        samples //= 2
    return samples * _length(config)


def least_micro_batch(config: Config) -> int:
    """Return the smallest micro-batch with which a job can compute in fp8; only its multiples can, too.

    It is 1 for a job that does not compute in fp8. The job's own micro-batch is ignored.
    """
    if config.optimisation.fp8_recipe == "none":
        return 1
    samples = MULTIPLE // math.gcd(MULTIPLE, _length(config))
    # Tensor ranks compute half of an even number of samples at a time.
    return 2 * samples if config.parallel.tensor > 1 and samples > 1 else samples


def _length(config: Config) -> int:
    """Return a number that divides the tokens of a sample in each product of a rank."""
    return math.gcd(config.model.seq_length, config.model.decoder_length) // config.parallel.context
