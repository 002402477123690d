# SPDX-License-Identifier: GPL-3.0-or-later
"""FASOP's cost model, heuristic and cases, reproduced exactly: the baseline for the planner's own search.

Source: Hwang, Lee, Oh, Yi: "FASOP: Fast yet Accurate Automated Search for Optimal Parallelization of
Transformers on Heterogeneous GPU Clusters", HPDC 2024 (doi 10.1145/3625549.3658687), and its public program.
"""
