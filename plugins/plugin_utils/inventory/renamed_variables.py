# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables of the last release that were renamed, and are still read, or removed."""

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
"""Former name -> new name. The roles' defaults read the former name too, since roles can be used alone."""
_NO_WRAPPER = "nothing here needs the command docker_rdma_sriov"
REMOVED = {
    "sriov_install_wrapper": _NO_WRAPPER,
    "sriov_wrapper_directory": _NO_WRAPPER,
    "sriov_wrapper_image": _NO_WRAPPER,
}
"""Variables that have no effect any more -> why."""
FORMER = NEW_NAMES.keys() | REMOVED.keys()


def with_new_names(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the variables with each value of a former name also under the new name, unless that is set."""
    former = {new: variables[old] for old, new in NEW_NAMES.items() if old in variables}
    return {**former, **variables} if former else variables


def notices(names: Iterable[str]) -> list[str]:
    """Return a sentence for each former variable among the names."""
    return [
        f"The variable {name} is called {NEW_NAMES[name]} now: rename it, the next release does not know it."
        if name in NEW_NAMES
        else f"The variable {name} has no effect any more, since {REMOVED[name]}: delete it."
        for name in sorted(FORMER & set(names))
    ]
