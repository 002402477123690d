# SPDX-License-Identifier: GPL-3.0-or-later
"""A thread that writes one rank's files of a checkpoint.

DeepSpeed passes each file to a *checkpoint engine*. This one only collects the states during DeepSpeed's save
and writes them afterwards, because that save has barriers: a slow or full disk on one node must not make
other ranks wait or time out.

The asynchronous engine of DeepSpeed 0.19.8 (``decoupled``) needs its buffered writer for NVMe, waits at most
five minutes, and loses write errors. This one works for every ZeRO stage and on every file system.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine

from rdm_trainer.checkpoint import reading, writing
from rdm_trainer.checkpoint.names import with_present_names

__all__ = ["RankWriter"]


class _Snapshot:
    """Copies states to host memory; tensors that share memory still share it in the copy."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, dict):
            copied = copy.copy(value)
            for key, item in value.items():
                copied[key] = self(item)
            return copied
        if type(value) in (list, tuple):
            return type(value)(self(item) for item in value)
        return copy.deepcopy(value)

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        pair = self._storages.get(storage._cdata)
        if pair is None:
            # Keep the original, so that its address is not reused.
            pair = storage, (storage.clone() if storage.device.type == "cpu" else storage.cpu())
            self._storages[storage._cdata] = pair
        copied = torch.empty(0, dtype=tensor.dtype)
        return copied.set_(pair[1], tensor.storage_offset(), tensor.size(), tensor.stride())


class RankWriter(CheckpointEngine):
    """DeepSpeed's checkpoint engine for one rank.

    Args:
        asynchronous: Copy the states to host memory, so that training can continue during the write.

    Attributes:
        files: The written files, with their bytes.
        error: Why writing failed; None if it did not.
        damaged: Names of files that were read and found damaged.
    """

    def __init__(self, *, asynchronous: bool = False) -> None:
        super().__init__()
        self.name = type(self).__name__
        self._asynchronous = asynchronous
        self._snapshot = _Snapshot()
        self._taken: list[tuple[Any, Path]] = []
        self._thread: threading.Thread | None = None
        self.files: dict[Path, int] = {}
        self.error: str | None = None
        self.damaged: set[str] = set()

    # Called by DeepSpeed.

    def create(self, info: object) -> None:  # DeepSpeed's name
        """Do nothing at the start of a checkpoint."""

    def commit(self, info: object) -> bool:  # noqa: ARG002  # DeepSpeed's name
        """End a checkpoint; the store commits it once all ranks are done."""
        return True

    def makedirs(self, path: str, exist_ok: bool = False) -> None:  # DeepSpeed's name
        """Do nothing: the writing thread creates directories, because it can report errors."""

    def save(self, state_dict: Any, path: str) -> None:
        """Collect a file's content."""
        self._taken.append((self._snapshot(state_dict) if self._asynchronous else state_dict, Path(path)))

    def load(self, path: str, map_location: Any = None) -> Any:
        """Read one of DeepSpeed's files, and only record damage: all ranks must finish reading first."""
        content, is_sound = reading.load(Path(path), map_location=map_location, of_deepspeed=True)
        if not is_sound:
            self.damaged.add(Path(path).name)
        return with_present_names(content)

    def preserves_storage_sharing(self) -> bool:
        """Return True, so that DeepSpeed clones parts of flat buffers instead of writing whole buffers."""
        return True

    # Called by the store.

    def start(self) -> None:
        """Begin to write the collected files."""
        self.files, self.error = {}, None
        taken, self._taken = self._taken, []
        self._snapshot = _Snapshot()
        self._thread = threading.Thread(target=self._run, args=(taken,), name="checkpoint")
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait up to some seconds, and tell whether writing has finished or failed."""
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self, taken: list[tuple[Any, Path]]) -> None:
        while taken:
            state, path = taken.pop(0)
            try:
                self.files[path] = writing.write(state, path)
            except OSError as error:
                self.error = f"{path}: {error.strerror or error}"
            except Exception as error:  # For example, a state that cannot be pickled; report it to all ranks.
                self.error = f"{path}: {type(error).__name__}: {error}"
            if self.error is not None:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                return
