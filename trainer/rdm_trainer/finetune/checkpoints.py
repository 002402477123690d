# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of transformers' checkpoints are complete, and which are kept."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

from rdm_core.errors import TrainerError
from rdm_trainer.distributed.collective import Collective

_MARK = ".complete"
_PREFIX = "checkpoint-"


class Checkpoints:
    """The checkpoints of a job. All ranks call the same methods in the same order.

    Args:
        directory: Where they are.
        collective: All ranks.
        keep: The newest N are kept; 0 keeps all.
        writes: This rank marks and removes those in its directory.
        layout: What must not change when a job is resumed, such as ``{"zero.stage": 2}``.
    """

    def __init__(
        self, directory: Path, collective: Collective, *, keep: int, writes: bool, layout: dict[str, int]
    ) -> None:
        self.directory = directory
        self._collective, self._keep, self._writes = collective, keep, writes
        self._layout = layout

    def newest(self) -> Path | None:
        """Return the newest one that is complete on every rank, and remove incomplete ones.

        Raises:
            TrainerError: It was written with another layout.
        """
        own = {number for number, path in self._all().items() if (path / _MARK).is_file()}
        common: set[int] = set.intersection(*map(set, self._collective.gather(sorted(own))))
        path = self._all()[max(common)] if common else None
        was: dict[str, int] = json.loads((path / _MARK).read_text()) if path else {}
        for key, value in self._layout.items():
            if was.get(key, value) != value:
                raise TrainerError(
                    f"{path} was written with {key} {was[key]}, and this job has {value}; go on with "
                    "that, or give the job another --job-dir."
                )
        if self._writes:
            for number in self._all().keys() - own:
                self._remove(number)
        return path

    def commit(self, step: int) -> None:
        """Mark a checkpoint that all ranks have written, and remove those that are not kept."""
        self._collective.barrier()
        if self._writes:
            written = self._all()[step]
            for tag in written.glob("global_step*"):
                # DeepSpeed writes this file on the first node only, but reads it on each.
                (written / "latest").write_text(tag.name)
            (written / _MARK).write_text(json.dumps(self._layout) + "\n")
            kept = sorted(self._all())
            for number in kept[: -self._keep] if self._keep else ():
                self._remove(number)
        self._collective.barrier()

    def _remove(self, number: int) -> None:
        with contextlib.suppress(OSError):
            shutil.rmtree(self.directory / f"{_PREFIX}{number}")

    def _all(self) -> dict[int, Path]:
        found = {path.name.removeprefix(_PREFIX): path for path in self.directory.glob(f"{_PREFIX}*")}
        return {int(number): path for number, path in found.items() if number.isdecimal()}
