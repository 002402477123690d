# SPDX-License-Identifier: GPL-3.0-or-later
"""Real process groups on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.members import Members
from tests.distributed.slurm_cluster import Image, Slurm, running

# Ranks share few cores, so threads of their own would only compete. torch reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without it, DeepSpeed searches for a GPU first.
os.environ.setdefault("DS_ACCELERATOR", "cpu")


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    """The members of a rendezvous."""
    with Members(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with running(Slurm(tmp_path_factory.mktemp("slurm")), "sbatch", "ch-run", "sqfstar") as cluster:
        yield cluster
