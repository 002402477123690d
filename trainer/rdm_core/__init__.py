# SPDX-License-Identifier: GPL-3.0-or-later
"""What all parts of the trainer share: errors, configuration, partition, costs, heartbeat. No torch."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.5.0"
