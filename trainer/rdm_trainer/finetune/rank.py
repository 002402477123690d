# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m rdm_trainer.finetune.rank CONFIG``: a rank of a job that fine-tunes, in its directory."""

from __future__ import annotations

import sys
from pathlib import Path

from rdm_core import config as configuration
from rdm_core import data_paths
from rdm_core.config.finetune import FinetuneConfig
from rdm_trainer.finetune.packages import require_packages


def main(resolved: Path) -> int:
    """Fine-tune as one rank of a job.

    Args:
        resolved: The configuration with every key, in the job's directory.
    """
    require_packages()
    from rdm_trainer.finetune.run import run

    directory = resolved.parent
    config = configuration.load_as(FinetuneConfig, resolved)
    return run(data_paths.finetune_here(config, directory.parent), directory)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
