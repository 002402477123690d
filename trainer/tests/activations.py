# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory of what a forward pass saves for the backward pass."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def saved_bytes(forward: Callable[[], Result], weights: Iterable[torch.Tensor]) -> tuple[int, Result]:
    """Return the bytes that a forward pass saves besides the weights, and its result."""
    known = {weight.untyped_storage().data_ptr() for weight in weights}
    storages: dict[int, torch.UntypedStorage] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        result = forward()
    return sum(one.nbytes() for pointer, one in storages.items() if pointer not in known), result
