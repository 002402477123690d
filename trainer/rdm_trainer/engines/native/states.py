# SPDX-License-Identifier: GPL-3.0-or-later
"""The native engine's weights and optimiser in checkpoints; every layout can read what any other wrote.

A checkpoint has each weight's fp32 values and AdamW moments, with its name and shape in the whole model and
without padding of the vocabulary.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from rdm_core.config import Config
from rdm_trainer.checkpoint import damage, distributed, writing
from rdm_trainer.checkpoint.boxes import Box
from rdm_trainer.checkpoint.distributed import METADATA, Saved
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.checkpoint.fragments import STEP, boxes_of
from rdm_trainer.engines.native.sharded_adamw import ShardedAdamW

__all__ = ["NativeStates"]

# The ranks wait for each other at the end of writing, which may take any time. If a rank dies, the job ends
# in other ways.
_TIMEOUT = datetime.timedelta(days=7)


class _Engine(Protocol):
    config: Config
    sharded: ShardedAdamW
    steps: int
    topology: Any


class NativeStates:
    """The states of the native engine; see :class:`rdm_trainer.engines.engine.States`.

    Args:
        engine: The engine with these states.
    """

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine
        self._asynchronous = engine.config.checkpoint.asynchronous
        self._vocabulary = engine.config.spec.vocabulary
        self._group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        self._thread: threading.Thread | None = None
        self.files: dict[Path, int] = {}
        self.error: str | None = None

    def save(self, directory: Path, name: str, state: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
        """See :class:`rdm_trainer.engines.engine.States`."""
        del state
        self.files, self.error = {}, None
        parts = list(self._saved_parts())
        if self._asynchronous:
            parts = [
                Box(part.key, part.shape, part.offsets, part.values.to("cpu", copy=True)) for part in parts
            ]
        self._thread = threading.Thread(
            target=self._write, args=(directory / name, parts, extra), name="checkpoint"
        )
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """See :class:`rdm_trainer.engines.engine.States`."""
        if self._thread is None:
            return True
        self._thread.join(None if seconds == float("inf") else seconds)
        return not self._thread.is_alive()

    def can_load(self, layout: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """See :class:`rdm_trainer.engines.engine.States`; it reads parts, whoever wrote them."""
        return False

    def needed_files(self, manifest: Manifest, saved: Saved | None) -> set[str]:  # noqa: ARG002
        """See :class:`rdm_trainer.engines.engine.States`."""
        assert saved is not None
        return saved.needed_files(self._loaded_parts(torch.zeros(1)))

    def load(self, directory: Path, name: str, manifest: Manifest, saved: Saved | None) -> set[str]:  # noqa: ARG002
        """See :class:`rdm_trainer.engines.engine.States`."""
        assert saved is not None
        step = torch.zeros(1)
        saved.load(self._loaded_parts(step))
        self._engine.sharded.steps = float(step)
        self._engine.sharded.publish()
        self._engine.steps = int(manifest.state["iteration"])
        return set()

    def _loaded_parts(self, step: torch.Tensor) -> list[Box]:
        """Return this rank's parts of all states."""
        fragments = self._engine.sharded.fragments()
        parts = [part for fragment in fragments for part in boxes_of(fragment, self._vocabulary)]
        return [*parts, Box(STEP, (1,), (0,), step)]

    def _saved_parts(self) -> Iterator[Box]:
        """Yield the parts that this rank writes; only one rank writes a replicated part."""
        optimiser, rank = self._engine.sharded, dist.get_rank()
        for fragment in optimiser.fragments():
            if optimiser.is_counted(fragment.name, fragment.weight):
                yield from boxes_of(fragment, self._vocabulary)
        if rank == 0:
            yield Box(STEP, (1,), (0,), optimiser.steps.reshape(1))

    def _write(self, directory: Path, parts: list[Box], extra: Mapping[str, Any]) -> None:
        rank = dist.get_rank()
        try:
            for name, content in extra.items():
                writing.write(content, directory / name)
            distributed.write(directory, parts, self._group)
            own = list(directory.glob(f"__{rank}_*.distcp"))
            own += [directory / METADATA] if rank == 0 else []
            own += [damage.note(path) for path in own]
            own += [directory / name for name in extra]
            self.files = {path: path.stat().st_size for path in own}
        except CheckpointException as error:
            failed = error.failures.get(rank)
            if failed is not None:
                cause = failed[0]
                reason = cause.strerror if isinstance(cause, OSError) else str(cause).splitlines()[0]
                self.error = f"{directory}: {reason}"
        except OSError as error:
            self.error = f"{error.filename or directory}: {error.strerror or error}"
        except Exception as error:  # Report it to every rank.
            self.error = f"{directory}: {type(error).__name__}: {error}"
