# SPDX-License-Identifier: GPL-3.0-or-later
"""An engine's weights and optimiser in checkpoints; every layout and engine can read what any other wrote.

A checkpoint has each weight's fp32 values and AdamW moments, with its name and shape in the whole model and
without padding of the vocabulary.
"""

from __future__ import annotations

import abc
import contextlib
import datetime
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from rdm_core.config import Config
from rdm_trainer import process
from rdm_trainer.checkpoint import damage, distributed, writing
from rdm_trainer.checkpoint.boxes import Box
from rdm_trainer.checkpoint.distributed import METADATA, Saved
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.checkpoint.fragments import STEP, Fragment, boxes_of
from rdm_trainer.compute_time import beside_steps

# The ranks wait for each other at the end of writing, which may take any time. If a rank dies, the job ends
# in other ways.
_TIMEOUT = datetime.timedelta(days=7)


class States(abc.ABC):
    """An engine's weights and optimiser as files. All ranks call the methods together.

    Args:
        config: The job.

    Attributes:
        files: The files that this rank wrote last, with their bytes.
        error: Why writing failed; None if it did not.
    """

    def __init__(self, config: Config) -> None:
        self._asynchronous = config.checkpoint.asynchronous
        self._vocabulary = config.spec.vocabulary
        self._device = process.device()
        self._group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        self._thread: threading.Thread | None = None
        self.files: dict[Path, int] = {}
        self.error: str | None = None

    # Implemented by each engine.

    @abc.abstractmethod
    def _fragments(self) -> Iterable[Fragment]:
        """Return this rank's fragments; their values are views of the optimiser's."""

    @abc.abstractmethod
    def _is_written(self, fragment: Fragment) -> bool:
        """Return whether this rank writes a fragment; of ranks with the same one, one does."""

    @abc.abstractmethod
    def _updates(self) -> torch.Tensor:
        """Return the number of updates of the weights, shape [1]."""

    @abc.abstractmethod
    def _loaded(self, updates: float, manifest: Manifest) -> None:
        """Continue from loaded fragments.

        Args:
            updates: Number of updates of the weights.
            manifest: The checkpoint's manifest, with the training's counters.
        """

    def counters(self) -> Mapping[str, Any]:
        """Return what the engine adds to the training's state in the manifest, serialisable as JSON."""
        return {}

    # Common to all engines.

    def save(self, directory: Path, extra: Mapping[str, Any]) -> None:
        """Begin to write into an empty directory, in the background if that is configured.

        Args:
            directory: The step's directory.
            extra: Additional content that this rank writes, by the file's name.
        """
        self.files, self.error = {}, None
        parts = list(self._written_parts())
        if self._asynchronous:
            parts = [
                Box(part.key, part.shape, part.offsets, part.values.to("cpu", copy=True)) for part in parts
            ]
        self._thread = threading.Thread(target=self._write, args=(directory, parts, extra), name="checkpoint")
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait up to some seconds, and tell whether writing has finished or failed."""
        if self._thread is None:
            return True
        self._thread.join(None if seconds == float("inf") else seconds)
        return not self._thread.is_alive()

    def needed_files(self, saved: Saved) -> set[str]:
        """Return the files of a checkpoint that this rank reads."""
        return saved.needed_files(self._own_parts(torch.zeros(1)))

    def load(self, saved: Saved, manifest: Manifest) -> None:
        """Read this rank's parts of a checkpoint."""
        updates = torch.zeros(1)
        saved.load(self._own_parts(updates))
        self._loaded(float(updates), manifest)

    def _own_parts(self, updates: torch.Tensor) -> list[Box]:
        """Return this rank's parts of all states.

        Args:
            updates: Receives the number of updates, shape [1].
        """
        parts = [part for fragment in self._fragments() for part in boxes_of(fragment, self._vocabulary)]
        return [*parts, Box(STEP, (1,), (0,), updates)]

    def _written_parts(self) -> Iterator[Box]:
        """Yield the parts that this rank writes."""
        for fragment in self._fragments():
            if self._is_written(fragment):
                yield from boxes_of(fragment, self._vocabulary)
        if dist.get_rank() == 0:
            yield Box(STEP, (1,), (0,), self._updates())

    def _write(self, directory: Path, parts: list[Box], extra: Mapping[str, Any]) -> None:
        rank = dist.get_rank()
        try:
            if self._device.type == "cuda":
                # A new thread begins with the first GPU, and torch would wait for copies from that one.
                torch.cuda.set_device(self._device)
            # All ranks meet here. One that failed before would leave the others waiting.
            with beside_steps() if self._asynchronous else contextlib.nullcontext():
                distributed.write(directory, parts, self._group)
            for name, content in extra.items():
                writing.write(content, directory / name)
            own = list(directory.glob(f"__{rank}_*.distcp"))
            own += [directory / METADATA] if rank == 0 else []
            own += [directory / name for name in extra]
            own += [damage.note(path) for path in own]
            self.files = {path: path.stat().st_size for path in own}
        except CheckpointException as error:
            failed = error.failures.get(rank)
            if failed is not None:
                self.error = f"{directory}: {_reason(failed[0])}"
        except OSError as error:
            self.error = f"{error.filename or directory}: {error.strerror or error}"
        except Exception as error:  # Report it to every rank.
            self.error = f"{directory}: {type(error).__name__}: {error}"


def _reason(cause: BaseException) -> str:
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    # Some errors, such as Python's own for memory, have no message.
    return next(iter(str(cause).splitlines()), type(cause).__name__)
