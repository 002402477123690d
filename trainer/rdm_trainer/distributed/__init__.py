# SPDX-License-Identifier: GPL-3.0-or-later
"""Parallelism: which rank has which part, and how ranks share layers, pipelines and decisions."""
