# SPDX-License-Identifier: GPL-3.0-or-later
"""The layout planner: which parallel layout, partition and placement trains a model fastest on given nodes.

It is pure Python without torch, so the control side runs it in process. From the bottom up:

- ``nodes``: kinds of nodes, and the links between them;
- ``times``: times of layers and links, published or measured;
- ``schedules``: the step time of a pipeline of unequal stages, and lower bounds on it, stage by stage;
- ``partition``: the exact best cut of the layers into stages, by dynamic programming and branch and bound;
- ``fasop``: FASOP's cost model and heuristic, reproduced exactly, as the baseline;
- ``search``: every layout on every placement; layouts that cannot win are pruned.
"""
