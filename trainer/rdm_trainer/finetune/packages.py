# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages that only a fine-tuning needs."""

from __future__ import annotations

import importlib.util

from rdm_core.errors import TrainerError

__all__ = ["require_packages"]

_PACKAGES = ("accelerate", "datasets", "peft", "transformers", "trl")


def require_packages() -> None:
    """Refuse to begin without them.

    Raises:
        TrainerError: One is missing.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise TrainerError(
            f"finetune needs {', '.join(missing)}, which {verb} not installed: "
            "pip install 'rdm-trainer[finetune]'."
        )
