# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the index maps that are missing, while other processes wait as long as it takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rdm_core.errors import TrainerError
from rdm_trainer.data.index_maps.files import misfit, read, require_writable, save

Progress = Callable[[float], None]
"""Called from time to time with the share of a map that is done."""
Build = Callable[[Progress], Iterator[tuple[Path, npt.NDArray[np.generic]]]]
"""Yields a map's arrays, each as soon as it is complete, with the file that it goes into."""

# Seconds between two lines about a map that takes long.
LOG_EVERY_S = 10.0


def _wait_alone(done: Callable[[float], bool]) -> None:
    while not done(1.0):
        pass


@dataclass
class MapMaker:
    """Which process makes the maps of a training, and how the others wait for them.

    Attributes:
        leads: Returns whether this process makes what is missing in a directory: of the processes that see
            the same directory, one does. Every process calls it, in the same order.
        wait_until: Calls its argument again and again, with the seconds that a call may take, and returns
            when it has returned True in every process. A collective operation that waits as long would exceed
            its timeout.
        first_error: Returns the first of all processes' errors; None if there is none.
        log: Takes a line for the log.
    """

    leads: Callable[[Path], bool] = lambda _: True
    wait_until: Callable[[Callable[[float], bool]], None] = _wait_alone
    first_error: Callable[[str | None], str | None] = lambda error: error
    log: Callable[[str], None] = lambda _: None

    def make(self, name: str, files: Sequence[Path], build: Build, check: Callable[[], object]) -> None:
        """Return when the files exist and are valid. Every process calls this, in the same order.

        Args:
            name: The map's name, for the log and for errors.
            files: The map's files, in one directory.
            build: Makes them.
            check: Reads them and compares them with the data. Only the writer does so.

        Raises:
            TrainerError: They could not be made or written, or are not valid; the same in every process.
        """
        work = None
        if self.leads(files[0].parent):
            work = _Work(name, files, build, check, self.log)
        self.wait_until(work.wait if work is not None else lambda _: True)
        error = self.first_error(work.error if work is not None else None)
        if error is not None:
            raise TrainerError(error)

    def table(
        self,
        name: str,
        path: Path,
        build: Callable[[Progress], npt.NDArray[np.generic]],
        fits: Callable[[npt.NDArray[np.generic]], bool],
    ) -> npt.NDArray[np.generic]:
        """Read a map of samples that is one file; make it first if it is missing.

        Args:
            name: As for :meth:`make`.
            path: The map's file.
            build: Returns the map.
            fits: Returns whether a map belongs to the data.

        Returns:
            The map, mapped into memory.

        Raises:
            TrainerError: It cannot be made, written or read, or does not fit the data.
        """

        def make(progress: Progress) -> Iterator[tuple[Path, npt.NDArray[np.generic]]]:
            yield path, build(progress)

        def check() -> None:
            if not fits(read(path)):
                raise misfit(path, "other samples")

        self.make(name, [path], make, check)
        return read(path)


class _Work:
    """A map that a separate thread makes, so that this process can answer the others."""

    def __init__(
        self,
        name: str,
        files: Sequence[Path],
        build: Build,
        check: Callable[[], object],
        log: Callable[[str], None],
    ) -> None:
        self.error: str | None = None
        self._name, self._files, self._build, self._check, self._log = name, files, build, check, log
        self._part = 0.0
        self._began = self._logged_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="index-map", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds``, and return whether the map is done."""
        self._thread.join(seconds)
        running, now = self._thread.is_alive(), time.monotonic()
        if running and now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            done = f"{self._part:.0%} after {now - self._began:.0f} s"
            self._log(f"making the index map of {self._name}: {done}")
        return not running

    def _run(self) -> None:
        try:
            if not all(path.is_file() for path in self._files):
                self._make()
            self._check()
        except TrainerError as error:
            self.error = str(error)
        except Exception as error:  # the other processes wait, and must learn of it
            self.error = f"The index map of {self._name} could not be made: {type(error).__name__}: {error}."

    def _make(self) -> None:
        try:
            require_writable(self._files[0])
            for path, array in self._build(self._advance):
                save(path, array)
        except TrainerError as error:
            raise TrainerError(f"{self._name}: {error}") from None

    def _advance(self, part: float) -> None:
        self._part = part
