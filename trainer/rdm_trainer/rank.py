# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m rdm_trainer.rank CONFIG``: one rank of a job that trains, in the job's directory."""

from __future__ import annotations

import sys
from pathlib import Path

from rdm_core import config as configuration
from rdm_core import data_paths
from rdm_trainer.train import run


def main(resolved: Path) -> int:
    """Train as one rank of a job.

    Args:
        resolved: The configuration with every key, in the job's directory.
    """
    directory = resolved.parent
    return run(data_paths.here(configuration.load(resolved), directory.parent), directory)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
