# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model costs: parameters, FLOPs, memory. Arithmetic only, no torch."""
