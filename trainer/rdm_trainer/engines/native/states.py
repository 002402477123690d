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
from rdm_trainer.checkpoint import damage, distributed, reading, universal, writing
from rdm_trainer.checkpoint.distributed import METADATA, Box
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.distributed.parameters import shard_spec_of
from rdm_trainer.engines.native.sharded_adamw import STATES, Fragment, ShardedAdamW

__all__ = ["NativeStates"]

_STEP = "step"
# The ranks wait for each other at the end of writing, which may take any time. If a rank dies, the job ends
# in other ways.
_TIMEOUT = datetime.timedelta(days=7)


class _Engine(Protocol):
    config: Config
    sharded: ShardedAdamW
    steps: int
    topology: Any

    def parameter_names(self) -> list[str]: ...


class NativeStates:
    """The states of the native engine; see :class:`rdm_trainer.engines.engine.States`.

    Args:
        engine: The engine with these states.
    """

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine
        self._asynchronous = engine.config.checkpoint.asynchronous
        spec = engine.config.spec
        self._vocabulary = spec.vocab_size + spec.vocab_extra_ids
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

    def can_load(self, layout: Mapping[str, Any]) -> bool:
        """See :class:`rdm_trainer.engines.engine.States`; it reads what this engine wrote in any layout."""
        return layout.get("engine") == "native"

    def needed_files(self, manifest: Manifest, directory: Path) -> set[str]:
        """See :class:`rdm_trainer.engines.engine.States`."""
        own = distributed.needed_files(distributed.read_metadata(directory), list(self._parts()))
        return own | {name for name in manifest.files if not name.endswith(".distcp")}

    def load(self, directory: Path, name: str, manifest: Manifest) -> set[str]:
        """See :class:`rdm_trainer.engines.engine.States`."""
        metadata = distributed.read_metadata(directory / name)
        step = torch.zeros(1)
        with torch.no_grad():
            distributed.load(directory / name, metadata, [*self._parts(), Box(_STEP, (1,), (0,), step)])
        self._publish(float(step), manifest)
        return set()

    def needed_universal_files(self, manifest: Manifest) -> set[str]:
        """See :class:`rdm_trainer.engines.engine.States`."""
        return universal.needed_files(manifest, self._engine.parameter_names())

    def load_universal(self, folder: Path, manifest: Manifest) -> None:
        """See :class:`rdm_trainer.engines.engine.States`."""
        step = 0.0
        for part in self._parts():
            state, _, name = part.key.partition(".")
            where = universal.parameter_folder(folder, name)
            whole: torch.Tensor = reading.load_mapped(where / f"{state}.pt")["param"]
            for axis, (offset, size) in enumerate(zip(part.offsets, part.values.shape, strict=True)):
                whole = whole.narrow(axis, offset, size)
            with torch.no_grad():
                part.values.copy_(whole)
            step = float(reading.load_mapped(where / "step.pt"))
        self._publish(step, manifest)

    def _publish(self, step: float, manifest: Manifest) -> None:
        self._engine.sharded.steps = step
        self._engine.sharded.publish()
        self._engine.steps = int(manifest.state["iteration"])

    def _parts(self) -> Iterator[Box]:
        """Yield this rank's parts of all states."""
        for fragment in self._engine.sharded.fragments():
            yield from self._boxes(fragment)

    def _saved_parts(self) -> Iterator[Box]:
        """Yield the parts that this rank writes; only one rank writes a replicated part."""
        optimiser, rank = self._engine.sharded, dist.get_rank()
        for fragment in optimiser.fragments():
            if optimiser.is_counted(fragment.name, fragment.weight):
                yield from self._boxes(fragment)
        if rank == 0:
            yield Box(_STEP, (1,), (0,), optimiser.steps.reshape(1))

    def _boxes(self, fragment: Fragment) -> Iterator[Box]:
        shard_spec = shard_spec_of(fragment.weight)
        shape, axis = shard_spec.shape, shard_spec.dimension
        if shard_spec.vocabulary:
            shape = (self._vocabulary, *shape[1:])
        done = 0
        for offsets, sizes in distributed.boxes(fragment.weight.shape, fragment.begin, fragment.end):
            count = torch.Size(sizes).numel()
            place, size = list(offsets), list(sizes)
            if axis is not None:
                place[axis] += shard_spec.index * fragment.weight.shape[axis]
            # Drop the padding, which depends on the layout.
            size[0] = min(size[0], shape[0] - place[0])
            if size[0] > 0:
                for state in STATES:
                    values = fragment.states[state][done : done + count].view(sizes)[: size[0]]
                    yield Box(f"{state}.{fragment.name}", tuple(shape), tuple(place), values)
            done += count

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
