# SPDX-License-Identifier: GPL-3.0-or-later
"""A small, readable Megatron-DeepSpeed: what runs in the training container."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
