"""Turn a list of hosts into a cluster that trains large models.

>>> from rdm_provision import Cluster
>>> cluster = Cluster.load("inventory/lab")  # doctest: +SKIP
>>> result = cluster.up().result()  # doctest: +SKIP
>>> result.exit_code  # doctest: +SKIP
0

Names are loaded when first used, so that ``import rdm_provision`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdm_provision.api.cluster import Cluster, Node
    from rdm_provision.api.lab import Lab, LabNode
    from rdm_provision.errors import (
        ClusterBusyError,
        InputError,
        InventoryError,
        RdmError,
        ToolMissingError,
    )
    from rdm_provision.problem import Problem
    from rdm_provision.results.events import (
        Event,
        NodeRecap,
        NodeResult,
        Notice,
        PhaseStarted,
        Progress,
        RunFinished,
        RunResult,
        RunStarted,
        Status,
        TaskGoesOn,
        TaskStarted,
    )
    from rdm_provision.results.job_state import JobFailure, JobLines, JobNode, JobState, JobUpdate
    from rdm_provision.runner.run import Run

__all__ = [
    "Cluster",
    "ClusterBusyError",
    "Event",
    "InputError",
    "InventoryError",
    "JobFailure",
    "JobLines",
    "JobNode",
    "JobState",
    "JobUpdate",
    "Lab",
    "LabNode",
    "Node",
    "NodeRecap",
    "NodeResult",
    "Notice",
    "PhaseStarted",
    "Problem",
    "Progress",
    "RdmError",
    "Run",
    "RunFinished",
    "RunResult",
    "RunStarted",
    "Status",
    "TaskGoesOn",
    "TaskStarted",
    "ToolMissingError",
]

_HOME = {
    "api.cluster": ("Cluster", "Node"),
    "api.lab": ("Lab", "LabNode"),
    "errors": ("ClusterBusyError", "InputError", "InventoryError", "RdmError", "ToolMissingError"),
    "problem": ("Problem",),
    "results.job_state": ("JobFailure", "JobLines", "JobNode", "JobState", "JobUpdate"),
    "runner.run": ("Run",),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rdm_provision' has no attribute {name!r}")
    home = next((home for home, names in _HOME.items() if name in names), "results.events")
    return getattr(importlib.import_module(f"rdm_provision.{home}"), name)
