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
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdm_provision.api.cluster import Cluster, Node
    from rdm_provision.api.lab import Lab, LabNode
    from rdm_provision.errors import (
        ClusterBusyError,
        InputError,
        InventoryError,
        RdmError,
        RunProblem,
        ToolMissingError,
    )
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
    "Progress",
    "RdmError",
    "Run",
    "RunFinished",
    "RunProblem",
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
    "RunProblem": "errors",
    "RdmError": "errors",
    "ToolMissingError": "errors",
}

_RENAMED = {"Problem": "RunProblem"}
"""Former name -> new name, for one release."""


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        notice = f"rdm_provision.{name} is called {_RENAMED[name]} now; the next release does not know it"
        warnings.warn(notice, DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    if name not in __all__:
        raise AttributeError(f"module 'rdm_provision' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rdm_provision.{_HOME.get(name, 'results.events')}"), name)
