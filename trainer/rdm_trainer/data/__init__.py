# SPDX-License-Identifier: GPL-3.0-or-later
"""Data sets in Megatron's formats: written, looked into, and read as micro-batches.

Nothing here needs torch but :mod:`rdm_trainer.data.loaders` and :mod:`rdm_trainer.data.mock`.
"""

from __future__ import annotations

from rdm_trainer.data.checks import checks

__all__ = ["checks"]
