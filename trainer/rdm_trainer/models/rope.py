# SPDX-License-Identifier: GPL-3.0-or-later
"""Rotary positions: each pair of a head's features is rotated by an angle proportional to the position.

Source: Su et al., "RoFormer" (2021); the pairs are (i, i + half), as in GPT-NeoX and Llama. Scaling: Llama
3.1's as published with the model, YaRN as in Peng et al. (2023).
"""

from __future__ import annotations

import math

import torch

from rdm_core.model_spec import ModelSpec, RopeScaling


class RotaryPositions:
    """The rotations of all positions of a sequence, shared by the blocks of a rank.

    This is not a module, because DeepSpeed would round its tables to the parameters' type.

    Args:
        spec: The model; its ``seq_length`` is the number of positions.
        device: The device of the tables.
    """

    def __init__(self, spec: ModelSpec, device: torch.device | None = None) -> None:
        turns, factor = frequencies(spec.head_size, spec.rope_theta, spec.rope_scaling)
        angles = torch.outer(torch.arange(spec.seq_length, dtype=torch.float32), turns)
        # [sequence, 1, half a head], to multiply with [batch, sequence, heads, half a head].
        self.cos = (angles.cos() * factor)[:, None].to(device)
        self.sin = (angles.sin() * factor)[:, None].to(device)

    def rotate(self, heads: torch.Tensor, places: slice | torch.Tensor) -> torch.Tensor:
        """Rotate queries or keys.

        Args:
            heads: [batch, sequence, heads, head size].
            places: The positions of the tokens, the same in each sample, or int64 [batch, sequence].
        """
        cos, sin = self.cos[places], self.sin[places]
        left, right = heads.float().chunk(2, dim=-1)
        turned = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
        return turned.to(heads.dtype)


def frequencies(size: int, theta: float, scaling: RopeScaling | None) -> tuple[torch.Tensor, float]:
    """Return the angle per position of each pair, float32 [size / 2], and the factor on queries and keys.

    Args:
        size: Features of a head.
        theta: The base.
        scaling: The scaling for sequences longer than the model was first trained on.
    """
    steps = torch.arange(0, size, 2, dtype=torch.float32) / size
    turns = 1.0 / theta**steps
    if scaling is None:
        return turns, 1.0
    if scaling.kind == "linear":
        return turns / scaling.factor, 1.0
    if scaling.kind == "llama3":
        rounds = scaling.original_max_position_embeddings * turns / (2.0 * math.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        kept = ((rounds - low) / (high - low)).clamp(0.0, 1.0)
        return kept * turns + (1.0 - kept) * turns / scaling.factor, 1.0

    def pair_with(rounds: float) -> float:
        """Return the (fractional) pair that makes this many rotations within the original length."""
        length = scaling.original_max_position_embeddings / (rounds * 2.0 * math.pi)
        return size * math.log(length) / (2.0 * math.log(theta))

    first = max(math.floor(pair_with(scaling.beta_fast)), 0)
    last = min(math.ceil(pair_with(scaling.beta_slow)), size - 1)
    pairs = torch.arange(size // 2, dtype=torch.float32)
    divided = ((pairs - first) / max(last - first, 1e-3)).clamp(0.0, 1.0)
    factor = scaling.attention_factor or 0.1 * math.log(max(scaling.factor, 1.0)) + 1.0
    return divided * turns / scaling.factor + (1.0 - divided) * turns, factor
