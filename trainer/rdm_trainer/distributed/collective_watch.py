# SPDX-License-Identifier: GPL-3.0-or-later
"""A watch on the start and the end of each collective operation and message, whoever calls it.

Every operation calls one method of ``torch.distributed.ProcessGroup`` once: torch's functions, references to
them that DeepSpeed keeps, operations on objects, and batches. The watch wraps these methods, and the waits on
their works to see the ends. Only our own layers bypass them, so their operations are wrapped separately.

torch's flight recorder cannot replace it: it has neither start nor end of Gloo's collectives, nothing of its
messages, and durations of NCCL's only if all are timed. ``flight_recorder`` reads it when a rank hangs.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from rdm_trainer.distributed.tensor_parallel import layers

_METHODS = {
    "_allgather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "all_to_all_single": "all_to_all_single",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "gather": "gather",
    "monitored_barrier": "monitored_barrier",
    "recv": "recv",
    "recv_anysource": "recv",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "scatter": "scatter",
    "send": "send",
}
"""Methods of a process group, which differ between versions of torch → common names."""

_OF_LAYERS = {
    "begin_sum": "all_reduce",
    "begin_gather": "all_gather_into_tensor",
    "begin_scatter": "reduce_scatter_tensor",
}
"""Functions of our own layers that begin an operation → common names."""

_WAITS = ("wait", "synchronize", "block_current_stream")


class CollectiveWatch:
    """Watches the collective operations of this process within :meth:`watching`.

    Args:
        begin: Called with an operation's name when it begins. It returns a function to call at the end: when
            the operation's call returns, and again after a later wait.
        ignored: A process group to ignore.
    """

    def __init__(self, begin: Callable[[str], Callable[[], None]], ignored: Any) -> None:
        self._begin, self._ignored = begin, ignored
        # A work without other references is never waited for.
        self._ends: weakref.WeakKeyDictionary[Any, Callable[[], None]] = weakref.WeakKeyDictionary()
        self._pending: dict[int, Callable[[], None]] = {}
        self._batches: dict[Any, Callable[[], None]] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the operations within this context; afterwards all functions are restored."""
        with contextlib.ExitStack() as stack:
            group = dist.ProcessGroup
            for method, name in _METHODS.items():
                _replace(stack, group, method, self._watched, name)
            _replace(stack, group, "_start_coalescing", self._batch_begun)
            _replace(stack, group, "_end_coalescing", self._batch_ended)
            for method in _WAITS:
                _replace(stack, dist.Work, method, self._waited)
            for function, name in _OF_LAYERS.items():
                _replace(stack, layers, function, self._pending_begun, name)
            _replace(stack, layers, "end_collective", self._pending_ended)
            yield

    def _watched(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(group: Any, *arguments: Any, **options: Any) -> Any:
            # The operations of a batch all begin together at its end.
            if group is self._ignored or group in self._batches:
                return function(group, *arguments, **options)
            return self._ending(self._begin(name), function, group, *arguments, **options)

        return call

    def _ending(
        self, end: Callable[[], None], function: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Any:
        """Call a function; report the end when it returns, and again after a wait for its work."""
        try:
            work = function(*arguments, **options)
        finally:
            end()
        if isinstance(work, dist.Work):
            self._ends[work] = end
        return work

    def _waited(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(work: Any, *arguments: Any, **options: Any) -> Any:
            done = function(work, *arguments, **options)
            end = self._ends.pop(work, None)
            if end is not None:
                end()
            return done

        return call

    def _batch_begun(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, *arguments: Any) -> Any:
            if group is not self._ignored:
                self._batches[group] = self._begin("coalesced")
            return function(group, *arguments)

        return call

    def _batch_ended(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, *arguments: Any) -> Any:
            end = self._batches.pop(group, None)
            if end is None:
                return function(group, *arguments)
            return self._ending(end, function, group, *arguments)

        return call

    def _pending_begun(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(tensor: torch.Tensor, group: Any) -> torch.Tensor:
            end = self._begin(name)
            pending: torch.Tensor = function(tensor, group)
            end()
            # Autograd creates another tensor on the same memory.
            self._pending[pending.untyped_storage().data_ptr()] = end
            return pending

        return call

    def _pending_ended(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(pending: torch.Tensor) -> torch.Tensor:
            done: torch.Tensor = function(pending)
            end = self._pending.pop(pending.untyped_storage().data_ptr(), None)
            if end is not None:
                end()
            return done

        return call


def _replace(
    stack: contextlib.ExitStack, owner: Any, name: str, watched: Callable[..., Any], *arguments: Any
) -> None:
    """Replace a function of a class or a module, if this version has it, until the stack closes."""
    function = vars(owner).get(name)
    if function is not None:
        setattr(owner, name, watched(function, *arguments))
        stack.callback(setattr, owner, name, function)
