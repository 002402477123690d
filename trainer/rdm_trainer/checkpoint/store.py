# SPDX-License-Identifier: GPL-3.0-or-later
"""The checkpoints of a training: save and resume, coordinated over all ranks."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from rdm_core.config import Config
from rdm_core.errors import FAILED, TrainerError
from rdm_trainer.checkpoint import damage, files, identity, reading, universal
from rdm_trainer.checkpoint.distributed import METADATA
from rdm_trainer.checkpoint.files import Inventory, Manifest
from rdm_trainer.checkpoint.names import has_former_names
from rdm_trainer.checkpoint.storage import Storage
from rdm_trainer.distributed.collective import Collective
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines.engine import Engine

__all__ = ["Checkpoints", "Found", "find"]

_RANDOM = "rng_states.pt"
# Maximum number of processes that convert a checkpoint, because each opens every file.
_PARTS = 64


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
    identity.require_same_model(manifest.model, config, storage.directory / files.tag(manifest.iteration))
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
        """Save a step, or begin to if saving is asynchronous.

        All ranks agree on a failure. It is logged, and earlier checkpoints stay as they were.

        Args:
            iteration: The last completed step.
            state: The training's state, serialisable as JSON.

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
        partial = f"{files.tag(iteration)}{files.PARTIAL}"
        problem = self._storage.each(lambda: _recreate(self._storage.directory / partial))
        if problem is not None:
            return self._failed(iteration, problem)
        random = self._collective.gather(torch.get_rng_state())
        extra = {_RANDOM: random} if self._collective.rank == 0 else {}
        self._states.save(self._storage.directory, partial, {"iteration": iteration, **state}, extra)
        self._pending = iteration, dict(state)
        return self._config.checkpoint.asynchronous or self.finish()

    def finish(self) -> bool:
        """Wait for a pending save and commit it. Return whether that worked; True if none is pending."""
        if self._pending is None:
            return True
        iteration, state = self._pending
        self._collective.wait_until(self._states.wait)
        self._pending = None
        directory, name = self._storage.directory, files.tag(iteration)
        partial = directory / f"{name}{files.PARTIAL}"
        own = {path.relative_to(partial).as_posix(): size for path, size in self._states.files.items()}
        problem = self._storage.first_error(self._states.error)
        written: dict[str, int] = {}
        for part in self._collective.gather(own):
            written.update(part)
        if problem is None:
            manifest = Manifest(iteration, written, identity.model_of(self._config), self._layout, state)
            problem = self._storage.each(lambda: _commit(directory, name, manifest))
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
        """Resume from the checkpoint that :func:`find` found.

        Returns:
            The state passed to :meth:`save`.

        Raises:
            TrainerError: The checkpoint cannot be read.
        """
        storage, manifest, inventories = found.storage, found.manifest, found.inventories
        if storage.directory == self._storage.directory:
            self.newest = manifest.iteration
            if line := storage.repair_pointers(inventories, manifest.iteration):
                self._log(line)
        step_directory = storage.directory / files.tag(manifest.iteration)
        if self._states.can_load(manifest.layout):
            self._load(storage, manifest, inventories)
        else:
            self._load_converted(storage, manifest, inventories)
        problem = self._collective.first_error(self._engine.first_not_finite())
        if problem is not None:
            raise TrainerError(
                f"{step_directory} has values that are not finite ({problem}), with which no training can go "
                f"on; go to an earlier checkpoint with `rdm-trainer checkpoint repair {storage.directory} "
                "--iteration N`.",
                exit_code=FAILED,
            )
        return manifest.state

    def _load(self, storage: Storage, manifest: Manifest, inventories: dict[int, Inventory]) -> None:
        name = files.tag(manifest.iteration)
        if METADATA in manifest.files:
            # The metadata tells which files a rank reads.
            every = [{METADATA} for _ in range(self._collective.size)]
            self._spread(storage, name, manifest, every, inventories)
            inventories = storage.inventories()
        with damage.naming(storage.directory / name, {METADATA} & set(manifest.files)):
            own = self._states.needed_files(manifest, storage.directory / name)
        needed = self._needed(storage, own)
        self._spread(storage, name, manifest, needed, inventories)
        if METADATA in manifest.files:
            storage.verify(name, self._read_here(storage, manifest, needed))
        with damage.naming(storage.directory / name, needed[self._collective.rank]):
            damaged = self._states.load(storage.directory, name, manifest)
            random, is_sound = reading.load(storage.directory / name / _RANDOM)
        storage.refuse_damaged(name, damaged | (set() if is_sound else {_RANDOM}))
        if len(random) == self._collective.size:
            torch.set_rng_state(random[self._collective.rank])
        self._log(
            f"  successfully loaded checkpoint from {storage.directory} at iteration {manifest.iteration}"
        )

    def _load_converted(
        self, storage: Storage, manifest: Manifest, inventories: dict[int, Inventory]
    ) -> None:
        name = files.universal_tag(manifest.iteration)
        converted = _whole_universal(inventories, manifest.iteration)
        if converted is None:
            # The conversion needs all files of the step on one node.
            everything = [
                set(manifest.files) if rank == 0 else set() for rank in range(self._collective.size)
            ]
            self._spread(storage, files.tag(manifest.iteration), manifest, everything, inventories)
            self._convert(storage, manifest)
            inventories = storage.inventories()
            converted = _whole_universal(inventories, manifest.iteration)
            if converted is None:
                raise TrainerError(
                    f"{storage.directory / name} is not complete after the conversion; does another job use "
                    "it?",
                    exit_code=FAILED,
                )
        needed = self._needed(storage, self._states.needed_universal_files(converted))
        self._spread(storage, name, converted, needed, inventories)
        storage.verify(name, self._read_here(storage, converted, needed))
        with damage.naming(storage.directory / name, needed[self._collective.rank]):
            self._states.load_universal(storage.directory / name, manifest)
        self._log(
            f"  successfully loaded checkpoint from {storage.directory} at iteration {manifest.iteration}"
            f" (saved as {_short(manifest.layout)}, now {_short(self._layout)})"
        )

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

    def _convert(self, storage: Storage, manifest: Manifest) -> None:
        """Convert in subprocesses of the ranks that see rank 0's directory, while all ranks poll."""
        self._log(
            f"converting the checkpoint of iteration {manifest.iteration} for another layout:"
            f" {_short(manifest.layout)} -> {_short(self._layout)}"
        )
        workers = [rank for rank, store in enumerate(storage.stores) if store == storage.stores[0]][:_PARTS]
        rank, arguments = self._collective.rank, (storage.directory, manifest.iteration)
        self._on_first(lambda: universal.begin(*arguments))
        process: subprocess.Popen[str] | None = None
        error = None
        if rank in workers:
            # Hide the accelerators: the conversion runs on the CPU, and GPU memory belongs to the ranks.
            hidden = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), "")
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "rdm_trainer.checkpoint.universal", *map(str, arguments)),
                    *(str(workers.index(rank)), str(len(workers))),
                ],
                env={**os.environ, **hidden},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )

        def done(seconds: float) -> bool:
            nonlocal error
            if process is None:
                return True
            try:
                _, stderr = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                return False
            if process.returncode:
                error = (stderr.strip().splitlines() or [f"it ended with {process.returncode}"])[-1]
            return True

        try:
            self._collective.wait_until(done)
        finally:
            if process is not None and process.poll() is None:
                process.kill()
        errors = [found for found in self._collective.gather(error) if found is not None]
        if errors:
            if rank == 0:
                universal.abandon(*arguments)
            raise TrainerError(errors[0], exit_code=FAILED)
        self._on_first(lambda: universal.finish(*arguments))

    def _on_first(self, action: Callable[[], object]) -> None:
        """Run an action on rank 0, and raise its failure on every rank."""
        error = None
        if self._collective.rank == 0:
            try:
                action()
            except TrainerError as problem:
                error = str(problem)
        error = self._collective.gather(error)[0]
        if error is not None:
            raise TrainerError(error, exit_code=FAILED)


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
            log(f"the checkpoint of iteration {iteration} is not complete and is not taken")
    return None if newest is None else whole[newest]


def _whole_universal(inventories: Mapping[int, Inventory], iteration: int) -> Manifest | None:
    """Return the manifest of an iteration's universal copy if it is complete over all directories.

    A copy made by an earlier release does not count, because its parameters have other names.
    """
    copies = [Inventory(steps=inventory.universal) for inventory in inventories.values()]
    found = files.complete_steps(copies).get(iteration)
    if found is None or has_former_names(name.split("/")[1] for name in found.files if "/" in name):
        return None
    return found


def _short(layout: Mapping[str, Any]) -> str:
    form = f"ZeRO {layout['zero_stage']}, {layout['precision']}"
    if "engine" in layout:
        form += f", {layout['engine']}"
    return f"{identity.axes(layout)}, {form}"


def _recreate(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)


def _commit(directory: Path, name: str, manifest: Manifest) -> None:
    # A universal copy of an earlier checkpoint of this iteration is outdated.
    _remove(directory / files.universal_tag(manifest.iteration))
    files.commit(directory, name, manifest)


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
