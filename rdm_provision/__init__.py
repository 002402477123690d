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
    "Cluster": "api.cluster",
    "Node": "api.cluster",
    "JobFailure": "results.job_state",
    "JobLines": "results.job_state",
    "JobNode": "results.job_state",
    "JobState": "results.job_state",
    "JobUpdate": "results.job_state",
    "Lab": "api.lab",
    "LabNode": "api.lab",
    "Run": "runner.run",
    "ClusterBusyError": "errors",
    "InputError": "errors",
    "InventoryError": "errors",
    "Problem": "problem",
    "RdmError": "errors",
    "ToolMissingError": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rdm_provision' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rdm_provision.{_HOME.get(name, 'results.events')}"), name)
