# SPDX-License-Identifier: GPL-3.0-or-later
"""A small, readable Megatron-DeepSpeed: what runs in the training container."""

from __future__ import annotations

from rdm_core import __version__

__all__ = ["__version__"]
