"""The collection's constants, for the control side: see ``plugins/module_utils/constants.py``."""

from rdm_provision.environment import make_importable

make_importable()

from ansible_collections.rdm.provision.plugins.module_utils.constants import (  # noqa: E402
    CLUSTER,
    FINAL_STATES,
    LABEL_CLUSTER,
    LABEL_ROLE,
    LAUNCHERS,
    PLAN_FILE,
    RUNTIME_CONTAINER,
    RUNTIME_HOST,
    STATE_DIR,
)

__all__ = [
    "CLUSTER",
    "DATA_MODULE",
    "FINAL_STATES",
    "JOB_MODULE",
    "LABEL_CLUSTER",
    "LABEL_ROLE",
    "LAB_MODULE",
    "LAUNCHERS",
    "PLAN_FILE",
    "RUNTIME_CONTAINER",
    "RUNTIME_HOST",
    "STATE_DIR",
]

DATA_MODULE = "rdm.provision.job_data"
JOB_MODULE = "rdm.provision.job"
LAB_MODULE = "rdm.provision.lab"
"""The names of modules in events."""
