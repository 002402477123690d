# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables that had another name in the release before, which is understood for this one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

NEW_NAMES = {
    "container_dictionary": "container_address_map",
    "container_spare_jobs": "container_protect_jobs",
    "my_ip_dictionary": "my_ip_address_map",
    "preflight_patience": "preflight_timeout",
    "receipt_directory": "state_file_directory",
    "receipt_state": "state_file_state",
    "sriov_vf_parents": "sriov_vf_pfs",
    "verify_patience": "verify_timeout",
    "verify_rdma_patience": "verify_rdma_timeout",
}
"""Former name -> name. The default of a role's variable reads the former one, too: roles are used alone."""


def with_new_names(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return variables in which each value under a former name has the new one, too, unless that is set."""
    former = {new: variables[old] for old, new in NEW_NAMES.items() if old in variables}
    return {**former, **variables} if former else variables


def notices(names: Iterable[str]) -> list[str]:
    """Return a sentence for each former name among those of variables."""
    return [
        f"The variable {old} is called {NEW_NAMES[old]} now: rename it, the next release does not know it."
        for old in sorted(NEW_NAMES.keys() & set(names))
    ]
