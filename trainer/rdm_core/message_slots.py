# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory in which a GPU receives messages of others' copy engines."""

SLOTS = 4
"""Messages of one size class under way at once, from each rank to each other one."""

SMALLEST = 1 << 20
"""Bytes of the smallest size class; CUDA shares memory in pieces of 2 MiB."""


def size_class(size: int) -> int:
    """Return the bytes of a slot for messages of a size."""
    return max(SMALLEST, 1 << (size - 1).bit_length())
