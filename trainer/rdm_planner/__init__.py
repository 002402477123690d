# SPDX-License-Identifier: GPL-3.0-or-later
"""The layout planner: which parallel layout, partition and placement trains a model fastest on given nodes.

Pure Python, free of torch, so that the control side runs it in process. From below:

- ``nodes``: kinds of nodes, and the links between them;
- ``times``: what layers and links take, by published figures or measured;
- ``schedules``: what a pipeline of unequal stages takes, and a bound on it that needs one stage at a time;
- ``partition``: the best cut of the layers into stages, exactly, by dynamic programming and branch and bound;
- ``fasop``: FASOP's cost model and heuristic, to the number: the yardstick;
- ``search``: every layout on every placement, those that cannot win unsolved.
"""
