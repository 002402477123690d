# SPDX-License-Identifier: GPL-3.0-or-later
"""Of the ranks that see a directory, one makes its index maps."""

from __future__ import annotations

import dataclasses
import datetime
import errno
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from rdm_core.config import Blend, DataConfig
from rdm_core.errors import TrainerError
from rdm_trainer.checkpoint.storage import Storage
from rdm_trainer.data.indexed_dataset import IndexedWriter
from rdm_trainer.distributed import leaders
from rdm_trainer.distributed.collective import Collective
from rdm_trainer.train import Training
from tests.distributed import processes, resuming


def on_two_nodes(root: str) -> dict[str, str | None]:
    """Open data on two nodes; the second data set is on each node's own disk.

    Returns:
        What was wrong, by case.
    """
    shared, own = Path(root) / "shared", Path(root) / f"disk-{dist.get_rank()}"
    leaders._directory_key = lambda _: f"node {dist.get_rank()}"  # type: ignore[assignment]
    touch = Path.touch

    def refuse(path: Path) -> None:
        if path.parent in (shared, own):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        touch(path)

    def problem(**changes: Any) -> str | None:
        data = DataConfig(blend=blend, split="1", workers=0, **changes)
        try:
            Training(
                dataclasses.replace(resuming.GPT, data=data), Path(root) / "job", write=lambda _: None
            ).close()
        except TrainerError as error:
            return str(error)
        return None

    blend = (Blend(str(shared / "a"), 1.0), Blend(str(own / "b"), 1.0))
    found = {"two file systems": problem()}
    Path.touch = refuse  # type: ignore[method-assign, assignment]
    found["finished, read-only"] = problem()
    # checkpoint.load is opened like this.
    storage = Storage(shared, Collective(datetime.timedelta(minutes=5)), create=False)
    found["loaded, read-only"] = str(storage.leaders)
    found["no cache"] = problem(index_cache="/proc/maps")
    return found


def test_index_maps_are_made_once_per_file_system(tmp_path: Path) -> None:
    for name in ("shared/a", "disk-0/b", "disk-1/b"):
        with IndexedWriter(tmp_path / name, np.uint16) as writer:
            for _ in range(20):
                writer.add(range(90))
                writer.end_document()
    for found in processes.run(2, on_two_nodes, str(tmp_path)):
        assert found["two file systems"] is None
        assert found["finished, read-only"] is None
        assert found["loaded, read-only"] == "[0, 1]"
        assert re.fullmatch(
            r"rank 0: .*/a, split train: /proc/maps/a_train_.*\.npy cannot be written \(No such file or "
            r"directory\): give data\.index_cache a directory that every node can write\.",
            found["no cache"] or "",
        ), found
    for name, maps in (("shared", 3 + 2), ("disk-0", 3), ("disk-1", 3)):
        assert len(list((tmp_path / name).glob("*.npy"))) == maps
        assert not list((tmp_path / name).glob(".*"))
