# SPDX-License-Identifier: GPL-3.0-or-later
"""Sums over tensor ranks by exchange: each rank receives the others' summands, and adds them up itself.

The addition joins the kernel that reads the sum, and what is left of the collective is a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["ExchangeGroup", "Exchanges"]


@dataclass(frozen=True)
class ExchangeGroup:
    """What layers know of a process group that only exchanges, as ``torch.compile`` can trace it.

    Attributes:
        group_name: Of the process group, as in torch.
        own_rank: This rank's place in it.
        ranks: Number of its ranks.
    """

    group_name: str
    own_rank: int
    ranks: int

    @classmethod
    def of(cls, group: Any) -> ExchangeGroup:
        """Describe a process group."""
        return cls(group.group_name, group.rank(), group.size())

    def size(self) -> int:
        """Return the number of ranks, like a process group."""
        return self.ranks


class Exchanges(dist.ProcessGroup):
    """A process group whose only operations are an all-to-all and an all-gather; subclasses transfer.

    Args:
        name: Its name in torch.
        rank: This rank's place in it.
        ranks: Number of its ranks.
    """

    # torch reads it of the backend of a device.
    supports_splitting = False

    def __init__(self, name: str, rank: int, ranks: int) -> None:
        super().__init__(rank, ranks)  # type: ignore[call-arg]  # without a store, as in torch's own tests
        self._name, self._ranks = name, ranks

    def transfer(self, sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor]) -> dist.Work:
        """Begin to send a tensor to each rank, and to receive one from each; all are contiguous.

        What a rank sends to itself has as many elements as what it receives from itself. Any may be empty.
        """
        raise NotImplementedError

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """Its name; torch's own property asks a backend."""
        return self._name

    def getBackendName(self) -> str:  # noqa: N802  # torch's name
        """Return the name for torch's messages."""
        return "exchanges"

    def _get_backend(self, _device: torch.device) -> Any:
        # It has no backends, and torch asks that of a new group whether it could be split.
        return self

    # The next names are those of torch 2.11; later versions still call them.
    def alltoall_base(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        _options: Any = None,
    ) -> dist.Work:
        """Send parts of a tensor, split in its first dimension, and receive the parts of another one."""
        return self.transfer(self._split(tensor, input_sizes), self._split(output, output_sizes))

    def allgather_into_tensor_coalesced(
        self, outputs: list[torch.Tensor], tensors: list[torch.Tensor], _options: Any = None
    ) -> dist.Work:
        """Send a tensor to all ranks, and receive theirs in the ranks' order."""
        ((output,), (tensor,)) = outputs, tensors
        return self.transfer([tensor] * self._ranks, self._split(output, []))

    def _split(self, tensor: torch.Tensor, sizes: list[int]) -> Sequence[torch.Tensor]:
        return tensor.split(sizes) if sizes else tensor.chunk(self._ranks)
