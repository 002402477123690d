# SPDX-License-Identifier: GPL-3.0-or-later
"""The cost of a model: parameters, FLOPs, memory. Arithmetic only, no torch."""
