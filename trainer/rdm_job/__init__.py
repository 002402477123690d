# SPDX-License-Identifier: GPL-3.0-or-later
"""A job on its nodes: one agent per node starts the processes, watches them, and ends them with the others'.

It is beside the trainer because it works without torch: nothing in here imports it.
"""
