# SPDX-License-Identifier: GPL-3.0-or-later
"""What the per-node launcher imports from here."""

from __future__ import annotations

import logging
import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)

from deepspeed.utils.numa import get_numactl_cmd  # DeepSpeed's own

__all__ = ["get_numactl_cmd", "logger", "set_log_level_from_string"]

logger = logging.getLogger("DeepSpeed")


def set_log_level_from_string(level: str) -> None:
    """Set the launcher's level."""
    logger.setLevel(level.upper())
