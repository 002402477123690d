# SPDX-License-Identifier: GPL-3.0-or-later
"""A micro-batch in two halves: tensor ranks compute one of them while they sum the other.

Source: Wang et al., "Domino: Eliminating Communication in LLM Training via Generic Tensor Slicing and
Overlapping" (arXiv 2409.15241), section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Part = Callable[[], torch.Tensor]
"""Waits for the sum of the last update of a part's states, and returns them. It is called once."""


def parts_of(states: torch.Tensor) -> list[Part]:
    """Return the two halves of a micro-batch [batch, ...]; an odd one stays whole."""
    return [_part(one) for one in states.chunk(2 if len(states) % 2 == 0 else 1)]


def _part(states: torch.Tensor) -> Part:
    return lambda: states


def whole_of(parts: Sequence[Part]) -> torch.Tensor:
    """Return the states of a whole micro-batch."""
    states = [part() for part in parts]
    return states[0] if len(states) == 1 else torch.cat(states)
