# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers and the loss, divided over the tensor-parallel ranks."""
