# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers and the loss, sharded over the tensor-parallel ranks."""
