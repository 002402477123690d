# SPDX-License-Identifier: GPL-3.0-or-later
"""A checkpoints directory as seen by all ranks: one shared, one per node, or anything in between."""

from __future__ import annotations

import contextlib
import heapq
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

from rdm_core.atomic_file import PARTIAL
from rdm_core.errors import FAILED, TrainerError
from rdm_trainer.checkpoint import damage, files
from rdm_trainer.checkpoint.files import Inventory, Manifest
from rdm_trainer.distributed.collective import CHUNK, Collective
from rdm_trainer.distributed.leaders import find_leaders

_T = TypeVar("_T")

# Bytes sent between two barriers of all ranks.
_MEETING = 4 * 1024**3


class Storage:
    """The directory on every rank, and which ranks share it. Every rank creates one.

    Args:
        directory: The directory's path on this rank.
        collective: All ranks.
        create: Create a missing directory, and reject one that is not writable. Otherwise the directory is
            only read.

    Attributes:
        stores: For each rank, the leader of the ranks that see the same directory.
        leaders: The leaders in order, one for each distinct directory.
        is_leader: This rank is a leader.
    """

    def __init__(self, directory: Path, collective: Collective, *, create: bool = True) -> None:
        self.directory = directory
        self.collective = collective
        # The job's name of this node, if an agent started this rank.
        self.node = os.environ.get("RDM_NODE") or socket.gethostname()
        error = None
        if create:
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as problem:
                error = f"{directory}: {problem.strerror}"
        self._refuse(error, "The checkpoints directory cannot be made")
        self.stores, error = find_leaders(directory, collective)
        if create:
            self._refuse(error, "The checkpoints directory cannot be written")
        self.leaders = sorted(set(self.stores))
        self.is_leader = self.stores[collective.rank] == collective.rank
        self.nodes: list[str] = collective.gather(self.node)

    @property
    def is_shared(self) -> bool:
        """All ranks see the same directory."""
        return len(self.leaders) == 1

    def _refuse(self, error: str | None, what: str) -> None:
        first = self.collective.first_error(error)
        if first is not None:
            raise TrainerError(f"{what}: {first}.", exit_code=FAILED)

    def inventories(self) -> dict[int, Inventory]:
        """Return the contents of each directory, by its leader."""
        found = self.collective.gather(files.scan(self.directory) if self.is_leader else None)
        return {rank: inventory for rank, inventory in enumerate(found) if inventory is not None}

    def each(self, action: Callable[[], Any]) -> str | None:
        """Run an action on each leader, and return the first error, if any: where, which file, why."""
        error = None
        if self.is_leader:
            try:
                action()
            except OSError as problem:
                error = f"{problem.filename or self.directory}: {problem.strerror or problem}"
        return self.first_error(error)

    def first_error(self, error: str | None) -> str | None:
        """Return the first error of any rank, with the rank and its node; None if there is none."""
        return self.collective.first_error(None if error is None else f"node {self.node}: {error}")

    def verify(self, name: str, sizes: Mapping[str, int]) -> None:
        """Compare files of a step with their checksums; ranks that see the same directory read a share each.

        Args:
            name: The step's directory.
            sizes: Bytes of each file that the ranks of this rank's directory need.

        Raises:
            DamagedError: On all ranks: some files of any directory are damaged.
        """
        rank = self.collective.rank
        ranks = [other for other, store in enumerate(self.stores) if store == self.stores[rank]]
        own = shares(sizes, len(ranks))[ranks.index(rank)]
        step = self.directory / name
        with ThreadPoolExecutor(1) as pool:
            # Reading a large checkpoint may take longer than the timeout of an operation.
            damaged = pool.submit(lambda: {file for file in own if _is_damaged(step / file)})
            self.collective.wait_until(lambda seconds: bool(wait([damaged], seconds).done))
            self.refuse_damaged(name, damaged.result())

    def refuse_damaged(self, name: str, damaged: set[str]) -> None:
        """Raise an error on all ranks if any rank found damaged files of a step."""
        found = {file for files_of_rank in self.collective.gather(damaged) for file in files_of_rank}
        if found:
            raise damage.DamagedError(self.directory / name, found)

    def all_or_none(self, name: str, read: Iterable[str], action: Callable[[], _T]) -> _T:
        """Run an action on every rank, and return its result if it succeeded on all.

        Args:
            name: The step's directory.
            read: Names of the step's files that the action reads.
            action: It calls no collective operation.

        Raises:
            DamagedError: On all ranks: the action failed on any of them, which found damaged files.
            TrainerError: On all ranks: the action failed on any of them for another reason.
        """
        result: Any = None
        cause: Exception | None = None
        damaged: set[str] = set()
        try:
            result = action()
        except Exception as problem:  # The other ranks wait, and must not go on without this one.
            cause = problem
            damaged = {file for file in read if not damage.is_sound(self.directory / name / file)}
        try:
            self.refuse_damaged(name, damaged)
            error = self.first_error(None if cause is None else _reason(cause))
            if error is not None:
                raise TrainerError(f"{self.directory / name} cannot be read: {error}.", exit_code=FAILED)
        except TrainerError as refused:
            raise refused from cause
        found: _T = result
        return found

    def clear_leftovers(self) -> None:
        """Remove what interrupted writes left in every directory."""
        self.each(lambda: files.clear_leftovers(self.directory))

    def repair_pointers(self, inventories: dict[int, Inventory], iteration: int) -> str | None:
        """Set every directory's pointers to an iteration.

        Returns:
            One line about the pointers that were wrong; None if all were right.
        """
        wrong = {
            rank: inventory for rank, inventory in inventories.items() if not inventory.points_to(iteration)
        }
        if self.is_leader and self.collective.rank in wrong:
            with contextlib.suppress(OSError):
                files.point_to(self.directory, iteration)
        self.collective.barrier()
        if not wrong:
            return None
        reported = ", ".join(
            f"{self.nodes[rank]} said {inventory.latest or inventory.megatron or 'nothing'}"
            for rank, inventory in wrong.items()
        )
        return f"repaired the checkpoint pointers to iteration {iteration}: {reported}"

    def spread(
        self, name: str, manifest: Manifest, needed: Sequence[set[str]], inventories: dict[int, Inventory]
    ) -> int:
        """Copy files of a step to the directories whose ranks need them.

        Args:
            name: The step's directory.
            manifest: Its manifest.
            needed: For each rank, the names of the files that it will read.
            inventories: The contents of each directory, by its leader.

        Returns:
            Bytes sent by all nodes together.

        Raises:
            TrainerError: A file could not be read, sent or written.
        """
        have = {leader: _sizes(inventories[leader], name) for leader in self.leaders}
        moves = []
        for leader in self.leaders:
            wanted = set().union(*(needed[rank] for rank, store in enumerate(self.stores) if store == leader))
            for file in sorted(wanted):
                size = manifest.files[file]
                if have[leader].get(file) != size:
                    source = next(other for other in self.leaders if have[other].get(file) == size)
                    moves.append((file, size, source, leader))
        error = None
        moved = 0
        for file, size, source, to in moves:
            path = self.directory / name / file
            if source == self.collective.rank:
                error = error or _send(self.collective, path, size, to)
            elif to == self.collective.rank:
                error = error or _receive(self.collective, path, size, source)
            moved += size
            if moved > _MEETING:
                # Ranks with nothing to send must not wait for all transfers in one operation.
                moved = 0
                self.collective.barrier()
        if moves and self.is_leader and error is None:
            # With the manifest, the next run knows that these files belong together.
            with contextlib.suppress(OSError):
                manifest.write(self.directory / name)
        self._refuse(error, f"The checkpoint {name} could not be brought to every node")
        return sum(size for _, size, _, _ in moves)


def _reason(problem: Exception) -> str:
    if isinstance(problem, TrainerError):
        return str(problem).removesuffix(".")
    if isinstance(problem, OSError) and problem.filename:
        return f"{problem.filename}: {problem.strerror}"
    return f"{type(problem).__name__}: {problem}"


def _is_damaged(path: Path) -> bool:
    # A network file system may fail once; a checkpoint is not given up for that.
    return not (damage.is_sound(path) or damage.is_sound(path))


def _sizes(inventory: Inventory, name: str) -> dict[str, int]:
    steps = {files.tag(step): part for step, part in inventory.steps.items()}
    return dict(steps[name].files) if name in steps else {}


def _send(collective: Collective, path: Path, size: int, to: int) -> str | None:
    # The receiver waits for all bytes whatever happens here, so an error is reported after all transfers.
    error: str | None = None
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
        except OSError as problem:
            error = f"{path}: {problem.strerror}"
        for begin in range(0, size, CHUNK):
            data = bytearray(min(CHUNK, size - begin))
            if error is None:
                try:
                    if file.readinto(data) != len(data):
                        error = f"{path}: has fewer than {size} bytes"
                except OSError as problem:
                    error = f"{path}: {problem.strerror}"
            collective.send(data, to)
    return error


def _receive(collective: Collective, path: Path, size: int, source: int) -> str | None:
    error: str | None = None
    partial = path.with_name(f"{path.name}{PARTIAL}")
    file = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = partial.open("wb", buffering=0)
    except OSError as problem:
        error = f"{partial}: {problem.strerror}"

    def take(data: memoryview) -> None:
        nonlocal error
        if error is None and file is not None:
            try:
                files.write_all(file, data)
            except OSError as problem:
                error = f"{partial}: {problem.strerror}"

    collective.receive(size, source, take)
    if file is not None:
        try:
            with file:
                os.fsync(file.fileno())
            if error is None:
                partial.replace(path)
        except OSError as problem:
            error = error or f"{partial}: {problem.strerror}"
    if error is not None:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return error


def shares(sizes: Mapping[str, int], parts: int) -> list[set[str]]:
    """Distribute names so that all parts are about the same size, placing the largest first."""
    found: list[set[str]] = [set() for _ in range(parts)]
    loads = [(0, part) for part in range(parts)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, part = heapq.heappop(loads)
        found[part].add(name)
        heapq.heappush(loads, (load + sizes[name], part))
    return found
