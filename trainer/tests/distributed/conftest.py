# SPDX-License-Identifier: GPL-3.0-or-later
"""Real process groups on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.distributed.slurm_cluster import DAEMONS, Image, Slurm

# Ranks share few cores: threads of their own would only fight for them. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without it DeepSpeed asks for a GPU first.
os.environ.setdefault("DS_ACCELERATOR", "cpu")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    missing = [name for name in (*DAEMONS, "sbatch", "ch-run", "sqfstar") if shutil.which(name) is None]
    assert not missing, f"{', '.join(missing)} are not here: make packages installs them"
    made = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        made.up()
        yield made
    finally:
        made.down()
