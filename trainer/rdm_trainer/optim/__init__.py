# SPDX-License-Identifier: GPL-3.0-or-later
"""The optimiser over the ranks, and the learning rate of each step."""
