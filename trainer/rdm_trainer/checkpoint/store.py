# SPDX-License-Identifier: GPL-3.0-or-later
"""The checkpoints of a training: save and resume, coordinated over all ranks."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from rdm_core.atomic_file import PARTIAL
from rdm_core.config import Config
from rdm_core.errors import FAILED, TrainerError
from rdm_trainer.checkpoint import damage, files, identity
from rdm_trainer.checkpoint.boxes import Box
from rdm_trainer.checkpoint.damage import CHECKSUM, DamagedError
from rdm_trainer.checkpoint.distributed import METADATA, Saved, read_metadata
from rdm_trainer.checkpoint.files import Inventory, Manifest
from rdm_trainer.checkpoint.partitions import Partitions, describe, described_files
from rdm_trainer.checkpoint.storage import Storage
from rdm_trainer.distributed.collective import Collective
from rdm_trainer.distributed.parameters import shard_spec_of
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines.engine import Engine

_RANDOM = "rng_states.pt"


@dataclasses.dataclass(frozen=True)
class Found:
    """A complete checkpoint from which a training resumes.

    Args:
        storage: Its checkpoints directory.
        manifest: The manifest of its files.
        inventories: The contents of each directory, by its leader.
    """

    storage: Storage
    manifest: Manifest
    inventories: dict[int, Inventory]


def find(config: Config, directory: Path, collective: Collective, log: Callable[[str], None]) -> Found | None:
    """Find a job's newest complete checkpoint, or else that of ``checkpoint.load``. All ranks call this.

    Nothing is written, except that a commit is completed if it was interrupted.

    Args:
        config: The job.
        directory: The job's checkpoints directory on this rank; it need not exist.
        collective: All ranks.
        log: Logs a line.

    Returns:
        None: The training starts from scratch.

    Raises:
        TrainerError: The checkpoint is of another model, or there is none where one must be.
    """
    storage = Storage(directory, collective, create=False)
    storage.each(lambda: files.recover(directory))
    inventories = storage.inventories()
    manifest = _newest(storage, inventories, log)
    if manifest is None and config.checkpoint.load is not None:
        storage = Storage(files.checkpoints_of(Path(config.checkpoint.load)), collective, create=False)
        inventories = storage.inventories()
        manifest = _newest(storage, inventories, log)
        if manifest is None:
            raise TrainerError(
                f"checkpoint.load is {storage.directory}, which has no complete checkpoint; see "
                f"`rdm-trainer checkpoint list {storage.directory}`."
            )
    if manifest is None:
        return None
    _require_same_model(manifest, config, storage)
    return Found(storage, manifest, inventories)


class Checkpoints:
    """Save and resume. Every rank creates one, and all ranks call its methods together.

    Args:
        config: The job.
        engine: The engine whose states are saved and restored.
        topology: This rank's place.
        collective: All ranks.
        directory: The checkpoints directory's path on this rank; what interrupted writes left there is
            removed.
        log: Logs a line; called on rank 0.
    """

    def __init__(
        self,
        config: Config,
        engine: Engine,
        topology: Topology,
        collective: Collective,
        directory: Path,
        log: Callable[[str], None],
    ) -> None:
        self._config, self._engine, self._topology = config, engine, topology
        self._collective = collective
        self._log = log
        self._storage = Storage(directory, collective)
        self._storage.clear_leftovers()
        self._layout = identity.layout_of(config, topology.world_size)
        self._states = engine.states
        self._pending: tuple[int, Mapping[str, Any]] | None = None
        self.newest: int | None = None

    # Saving.

    @property
    def is_writing(self) -> bool:
        """This rank is still writing in the background."""
        return not self._states.wait(0)

    @property
    def pending(self) -> int | None:
        """The iteration that is being saved and is not yet committed."""
        return self._pending[0] if self._pending else None

    def save(self, iteration: int, state: Mapping[str, Any]) -> bool:
        """Save a step and its state, which JSON can hold; or begin to if saving is asynchronous.

        All ranks agree on a failure. It is logged, and earlier checkpoints stay as they were.

        Returns:
            Whether the step was saved, or saving began.

        Raises:
            TrainerError: The state has values that are not finite. It must not become the newest checkpoint,
                and further training cannot repair it.
        """
        self.finish()
        problem = self._collective.first_error(self._engine.first_not_finite())
        if problem is not None:
            begin = f"the checkpoint of iteration {self.newest}" if self.newest else "the start"
            raise TrainerError(
                f"After iteration {iteration} there are values that are not finite ({problem}), with which "
                "no training can go on, so that it was not saved. Started again, the job goes on from "
                f"{begin}; if that ends here again, lower optimisation.lr or optimisation.clip_grad, or "
                "check the data.",
                exit_code=FAILED,
            )
        partial = f"{files.tag(iteration)}{PARTIAL}"
        problem = self._storage.each(lambda: _recreate(self._storage.directory / partial))
        if problem is not None:
            return self._failed(iteration, problem)
        random = self._collective.gather(torch.get_rng_state())
        extra = {_RANDOM: random} if self._collective.rank == 0 else {}
        self._states.save(self._storage.directory / partial, extra)
        self._pending = iteration, {**state, **self._states.counters()}
        return self._config.checkpoint.asynchronous or self.finish()

    def finish(self) -> bool:
        """Wait for a pending save and commit it. Return whether that worked; True if none is pending."""
        if self._pending is None:
            return True
        iteration, state = self._pending
        self._collective.wait_until(self._states.wait)
        self._pending = None
        directory, name = self._storage.directory, files.tag(iteration)
        partial = directory / f"{name}{PARTIAL}"
        own = {path.relative_to(partial).as_posix(): size for path, size in self._states.files.items()}
        problem = self._storage.first_error(self._states.error)
        written: dict[str, int] = {}
        for part in self._collective.gather(own):
            written.update(part)
        if problem is None:
            manifest = Manifest(iteration, written, identity.model_of(self._config.spec), self._layout, state)
            problem = self._storage.each(lambda: files.commit(directory, name, manifest))
            if problem is not None:
                self._storage.each(lambda: _remove(directory / name))
        if problem is not None:
            self._storage.each(lambda: _remove(partial))
            return self._failed(iteration, problem)
        self.newest = iteration
        # The checkpoint is complete, and is found even without the pointers.
        problem = self._storage.each(lambda: files.point_to(directory, iteration))
        self._storage.each(lambda: files.prune(directory, self._config.checkpoint.keep, iteration))
        if problem is not None:
            self._log(f"the checkpoint pointers could not be written: {problem}")
        self._log(f"  successfully saved checkpoint at iteration {iteration:7d} to {directory}")
        return True

    def _failed(self, iteration: int, problem: str) -> bool:
        kept = (
            f"the checkpoint of iteration {self.newest} stays"
            if self.newest
            else "there is no checkpoint yet"
        )
        self._log(f"iteration {iteration} was not saved, {kept}, and training goes on: {problem}")
        return False

    # Resuming.

    def resume(self, found: Found) -> Mapping[str, Any]:
        """Resume from the checkpoint that :func:`find` found or, if it is damaged, from the one before.

        Damaged checkpoints of this job are set aside once another one is loaded.

        Returns:
            The state passed to :meth:`save`.

        Raises:
            TrainerError: Every complete checkpoint is damaged, or one cannot be read.
        """
        storage, manifest, inventories = found.storage, found.manifest, found.inventories
        whole = files.complete_steps(list(inventories.values()))
        damaged = []
        while True:
            try:
                self._load(storage, manifest, inventories)
                break
            except DamagedError as refused:  # All ranks raise it together.
                damaged.append(manifest.iteration)
                before = max((step for step in whole if step < manifest.iteration), default=None)
                if before is None:
                    raise TrainerError(
                        f"{refused.damage}; no earlier checkpoint is left. Bring that back, or start again "
                        "under another name.",
                        exit_code=FAILED,
                    ) from refused
                manifest = whole[before]
                self._log(f"{refused.damage}; the checkpoint of iteration {before} is taken instead")
                _require_same_model(manifest, self._config, storage)
        step_directory = storage.directory / files.tag(manifest.iteration)
        problem = self._collective.first_error(self._engine.first_not_finite())
        if problem is not None:
            raise TrainerError(
                f"{step_directory} has values that are not finite ({problem}), with which no training can go "
                f"on; go to an earlier checkpoint with `rdm-trainer checkpoint repair {storage.directory} "
                "--iteration N`.",
                exit_code=FAILED,
            )
        if storage.directory == self._storage.directory:
            self.newest = manifest.iteration
            self._set_aside(damaged)
            if line := storage.repair_pointers(inventories, manifest.iteration):
                self._log(line)
        return manifest.state

    def _set_aside(self, damaged: Sequence[int]) -> None:
        if not damaged:
            return
        names: list[str] = []
        directory = self._storage.directory
        problem = self._storage.each(lambda: names.extend(files.set_aside(directory, damaged)))
        if problem is not None:
            self._log(f"damaged checkpoints could not be set aside: {problem}")
        else:
            # Rank 0's own directory may have no part of them.
            names = names or [files.tag(iteration) for iteration in sorted(damaged)]
            self._log(f"damaged checkpoints are set aside in {directory}: {', '.join(names)}")

    def _load(self, storage: Storage, manifest: Manifest, inventories: dict[int, Inventory]) -> None:
        name = files.tag(manifest.iteration)
        directory = storage.directory / name
        saved = _Saved(storage, name, self._tensors(storage, manifest, inventories))
        inventories = storage.inventories()
        own = storage.all_or_none(name, (), lambda: self._own(manifest, saved))
        needed = self._needed(storage, own)
        self._spread(storage, name, manifest, needed, inventories)
        # Several ranks read parts of the same files.
        storage.verify(name, self._read_here(storage, manifest, needed))
        self._states.load(saved, manifest)
        random = storage.all_or_none(
            name, {_RANDOM}, lambda: torch.load(directory / _RANDOM, weights_only=True)
        )
        if len(random) == self._collective.size:
            torch.set_rng_state(random[self._collective.rank])
        before, now = identity.describe(manifest.layout), identity.describe(self._layout)
        self._log(
            f"  successfully loaded checkpoint from {storage.directory} at iteration {manifest.iteration}"
            + (f" (saved as {before}, now {now})" if before != now else "")
        )

    def _tensors(
        self, storage: Storage, manifest: Manifest, inventories: dict[int, Inventory]
    ) -> Metadata | Partitions:
        """Return which file has which part of the tensors."""
        name = files.tag(manifest.iteration)
        directory = storage.directory / name
        if METADATA in manifest.files:
            every = [_with_checksums(set(), manifest)] * self._collective.size
            self._spread(storage, name, manifest, every, inventories)
            return storage.all_or_none(name, {METADATA}, lambda: _sound_metadata(directory))
        described = self._described(storage, manifest, inventories)
        pieces = storage.all_or_none(
            name,
            described,
            lambda: [piece for file in described for piece in describe(directory, file, manifest)],
        )
        every_piece = [piece for some in self._collective.gather(pieces) for piece in some]
        weights = self._engine.module.named_parameters()
        shard_specs = {parameter: shard_spec_of(weight) for parameter, weight in weights}
        return Partitions(every_piece, manifest.layout, shard_specs, self._config.spec.vocabulary)

    def _described(
        self, storage: Storage, manifest: Manifest, inventories: Mapping[int, Inventory]
    ) -> list[str]:
        """Return this rank's share of the files with descriptions."""
        rank = self._collective.rank
        ranks: dict[int, list[int]] = {}
        for other, store in enumerate(storage.stores):
            ranks.setdefault(store, []).append(other)
        steps = {leader: inventory.steps.get(manifest.iteration) for leader, inventory in inventories.items()}
        have = {
            leader: step.files
            for leader, step in steps.items()
            if step is not None and step.manifest == manifest
        }
        own = []
        for number, file in enumerate(described_files(manifest)):
            leaders = [leader for leader, sizes in have.items() if sizes.get(file) == manifest.files[file]]
            among = ranks[leaders[number % len(leaders)]]
            if among[number // len(leaders) % len(among)] == rank:
                own.append(file)
        return own

    def _own(self, manifest: Manifest, saved: Saved) -> set[str]:
        """Return the files that this rank reads."""
        names = self._states.needed_files(saved)
        if unknown := names - manifest.files.keys():
            raise ValueError(f"{min(unknown)} is none of its files")
        return _with_checksums({_RANDOM, *names}, manifest)

    def _needed(self, storage: Storage, own: set[str]) -> list[set[str]]:
        """Return the files that each rank reads; with a shared directory, only those of this rank."""
        if storage.is_shared:
            return [own if rank == self._collective.rank else set() for rank in range(self._collective.size)]
        return self._collective.gather(own)

    def _read_here(self, storage: Storage, manifest: Manifest, needed: list[set[str]]) -> Mapping[str, int]:
        """Return the size of each file that the ranks of this rank's directory read."""
        if storage.is_shared:
            return manifest.files
        own = storage.stores[self._collective.rank]
        names = set().union(*(needed[rank] for rank, store in enumerate(storage.stores) if store == own))
        return {name: manifest.files[name] for name in names}

    def _spread(
        self,
        storage: Storage,
        name: str,
        manifest: Manifest,
        needed: list[set[str]],
        inventories: dict[int, Inventory],
    ) -> None:
        sent = storage.spread(name, manifest, needed, inventories)
        if sent:
            self._log(f"brought {sent / 1e6:.1f} MB of {name} to nodes that did not have it")


class _Saved(Saved):
    """The tensors in the files of a step, which all ranks read, or none."""

    def __init__(self, storage: Storage, name: str, tensors: Metadata | Partitions) -> None:
        super().__init__(storage.directory / name, tensors)
        self._storage, self._name = storage, name

    def load(self, parts: Sequence[Box]) -> None:
        """Read parts. All ranks call this once.

        Raises:
            TrainerError: On all ranks: any of them could not read its parts.
        """
        read = super().load
        # The files are verified before, and reading all of them again would take long.
        self._storage.all_or_none(self._name, (), lambda: read(parts))


def _newest(
    storage: Storage, inventories: Mapping[int, Inventory], log: Callable[[str], None]
) -> Manifest | None:
    whole = files.complete_steps(list(inventories.values()))
    newest = max(whole, default=None)
    steps = sorted({step for inventory in inventories.values() for step in inventory.steps})
    if newest is None and steps:
        # Starting from scratch would in time overwrite steps that a returning node may complete.
        there = ", ".join(map(str, steps))
        nodes = ", ".join(storage.nodes[leader] for leader in storage.leaders)
        raise TrainerError(
            f"{storage.directory} has checkpoints of iterations {there}, none of them complete on "
            f"{nodes}; bring back the disk with the rest, or give the job a new name."
        )
    for iteration in steps:
        if newest is not None and iteration > newest:
            parts = [inventory.steps.get(iteration) for inventory in inventories.values()]
            log(
                f"the checkpoint of iteration {iteration} is not complete and is not taken: "
                f"{files.why_incomplete(parts)}"
            )
    return None if newest is None else whole[newest]


def _require_same_model(manifest: Manifest, config: Config, storage: Storage) -> None:
    identity.require_same_model(manifest.model, config, storage.directory / files.tag(manifest.iteration))


def _sound_metadata(directory: Path) -> Metadata:
    """Read the metadata, unless it is damaged: its content would be believed."""
    damage.refuse(directory, {METADATA})
    return read_metadata(directory)


def _with_checksums(names: set[str], manifest: Manifest) -> set[str]:
    """Add the metadata of all files, and the files with checksums, where a checkpoint has such files."""
    names = names | {METADATA}
    return (names | {f"{name}{CHECKSUM}" for name in names}) & manifest.files.keys()


def _recreate(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
