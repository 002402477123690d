# SPDX-License-Identifier: GPL-3.0-or-later
"""Which tokens each sample has: Megatron's index maps, to the byte. No torch here."""
