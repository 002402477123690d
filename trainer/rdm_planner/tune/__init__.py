# SPDX-License-Identifier: GPL-3.0-or-later
"""The verb ``tune``, shared by ``rdm-trainer`` and ``rdm-provision``; only the source of the nodes differs.

- ``options``: the options of the command line;
- ``fleet``: the nodes and their measurements;
- ``answer``: nodes and a job → the fastest layouts, what was left out, and what time costs;
- ``table``, ``page``: the answer for a terminal, and as HTML with a diagram of the pipeline;
- ``verb``: options and nodes → output and files.
"""
