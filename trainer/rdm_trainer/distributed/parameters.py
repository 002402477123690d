# SPDX-License-Identifier: GPL-3.0-or-later
"""Initial weights that do not depend on the layout.

Every parameter knows its whole tensor. The whole tensor is drawn in blocks of rows, each from a generator
seeded by (seed, canonical name, block). A rank draws only the blocks that it needs. So the initial weights
are the same for any number of processes.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import nn

_BLOCK_ELEMENTS = 1 << 20  # drawn at once: 4 MiB
_FEW = 8
"""Below this number of blocks, threads would cost more than they save."""


@dataclass(frozen=True)
class ShardSpec:
    """A parameter's part of its whole tensor, and the initial values of that tensor.

    Attributes:
        shape: Shape of the whole tensor.
        dimension: The dimension sharded over tensor-parallel ranks; ``None`` if each has the whole tensor.
        index: This rank's part.
        parts: Number of parts.
        std: Standard deviation of the normal distribution; ``None`` fills with ``constant``.
        constant: The value if there is no distribution.
        vocabulary: The first dimension is the padded vocabulary.
        decays: Weight decay applies, as to matrices, but not to biases, norms and positions.
        experts: The first dimension counts experts, sharded over the tensor and expert axes.
    """

    shape: tuple[int, ...]
    dimension: int | None = None
    index: int = 0
    parts: int = 1
    std: float | None = None
    constant: float = 0.0
    vocabulary: bool = False
    decays: bool = False
    experts: bool = False

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of this rank's part."""
        return tuple(
            size // self.parts if dimension == self.dimension else size
            for dimension, size in enumerate(self.shape)
        )

    def part(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the whole tensor, a view."""
        if self.dimension is None:
            return whole
        return whole.chunk(self.parts, dim=self.dimension)[self.index]


def parameter(shard_spec: ShardSpec) -> nn.Parameter:
    """Create an uninitialised parameter that carries its shard spec."""
    weight = nn.Parameter(torch.empty(shard_spec.local_shape))
    weight.shard_spec = shard_spec  # type: ignore[attr-defined]
    # DeepSpeed's norms count a parameter without this mark on the first tensor rank only.
    weight.tensor_model_parallel = shard_spec.dimension is not None  # type: ignore[attr-defined]
    return weight


def shard_spec_of(weight: nn.Parameter) -> ShardSpec:
    """Return a parameter's shard spec, as set by ``parameter``."""
    shard_spec = weight.shard_spec  # type: ignore[attr-defined]
    assert isinstance(shard_spec, ShardSpec)
    return shard_spec


def seed_of(*parts: object) -> int:
    """Return a pseudorandom seed, the same on every machine, derived from any parts."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def initialise(module: nn.Module, prefix: str, seed: int) -> None:
    """Fill the module's parameters.

    Args:
        module: A layer whose parameters were created by ``parameter``.
        prefix: The prefix of their names in the whole model, as ``3.`` or ``tied_modules.embed.``.
        seed: The job's seed.
    """
    draws: list[Callable[[], None]] = []
    for name, weight in module.named_parameters():
        draws += _draws(weight.data, shard_spec_of(weight), f"{prefix}{name}", seed)
    if len(draws) < _FEW:
        for draw in draws:
            draw()
        return
    with ThreadPoolExecutor(_threads()) as pool:
        # torch releases the GIL while it draws.
        for _ in pool.map(lambda draw: draw(), draws):
            pass


def _threads() -> int:
    """Return each rank's share of the cores that this process may use."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _draws(local: torch.Tensor, shard_spec: ShardSpec, name: str, seed: int) -> Iterator[Callable[[], None]]:
    """Fill a constant parameter at once; for others, yield a function that draws each block it needs."""
    if shard_spec.std is None:
        local.fill_(shard_spec.constant)
        return
    row = max(1, math.prod(shard_spec.shape[1:]))
    # A block's size must depend only on the row size, because vocabularies are padded to different heights.
    block = max(1, _BLOCK_ELEMENTS // row)
    local_rows = local.shape[0]
    first = shard_spec.index * local_rows if shard_spec.dimension == 0 else 0
    for number in range(first // block, -(-(first + local_rows) // block)):
        low, high = max(number * block, first), min((number + 1) * block, first + local_rows)
        yield functools.partial(
            _draw,
            local[low - first : high - first],
            shard_spec,
            seed_of(seed, name, number),
            (block, row),
            low - number * block,
        )


def _draw(
    local: torch.Tensor, shard_spec: ShardSpec, seed: int, block: tuple[int, int], skipped: int
) -> None:
    """Draw a block, and copy its part into some rows of a rank's part.

    Args:
        local: The rows to fill.
        shard_spec: The parameter's shard spec.
        seed: The block's seed.
        block: Rows of the block, and elements of a row of the whole tensor.
        skipped: Rows of the block before these.
    """
    generator = torch.Generator().manual_seed(seed)
    assert shard_spec.std is not None
    if local.numel() == block[0] * block[1]:
        local.normal_(0.0, shard_spec.std, generator=generator)
        return
    # Always draw the whole block: a shorter draw is not a prefix of a longer one.
    drawn = torch.empty(block).normal_(0.0, shard_spec.std, generator=generator)
    part = drawn[skipped : skipped + len(local)].view(-1, *shard_spec.shape[1:])
    if shard_spec.dimension not in (None, 0):
        assert shard_spec.dimension is not None
        part = part.chunk(shard_spec.parts, dim=shard_spec.dimension)[shard_spec.index]
    local.copy_(part)
