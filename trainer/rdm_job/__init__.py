# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs on their nodes: one agent per node starts, watches and ends the processes there.

This package is separate from the trainer because it needs no torch: nothing in it imports torch.
"""
