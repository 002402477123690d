# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages that only a fine-tuning needs."""

from __future__ import annotations

import importlib.util
import sys

from rdm_core.errors import TrainerError
from rdm_core.execution_environment import is_bare_host

_PACKAGES = ("accelerate", "datasets", "peft", "transformers", "trl")
_IMAGE = "/opt/rdm"
"""The environment of our images; see trainer/images/install.sh."""


def require_packages() -> None:
    """Raise an error if one of them is not installed.

    Raises:
        TrainerError: One is missing.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise TrainerError(f"finetune needs {', '.join(missing)}, which {verb} not installed: {_hint()}.")


def _hint() -> str:
    """Return how to install them here."""
    if sys.prefix == _IMAGE:
        return "build the training image with --build-arg EXTRAS=finetune, or the lab with --extra finetune"
    if is_bare_host():
        return "set python_env_extras: [finetune] in the inventory, and run rdm-provision env up"
    return "pip install 'rdm-trainer[finetune]'"
