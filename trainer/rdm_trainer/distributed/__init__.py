# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rank has which part, how ranks share a layer, a pipeline and a word."""
