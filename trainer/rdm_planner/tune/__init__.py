# SPDX-License-Identifier: GPL-3.0-or-later
"""The verb ``tune``, the same in ``rdm-trainer`` and ``rdm-provision``: only who knows the nodes differs.

- ``options``: what the command line takes;
- ``fleet``: the nodes, and what was measured there;
- ``answer``: nodes and a job → the fastest layouts, what was left out, and what time costs;
- ``table``, ``page``: the answer for a terminal, and as HTML with a diagram of the pipeline;
- ``verb``: from options and nodes to what is printed and written.
"""
