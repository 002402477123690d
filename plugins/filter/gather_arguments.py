# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the arguments of `node_facts` for each node from the plan's state files; see DOCUMENTATION."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DOCUMENTATION = r"""
name: gather_arguments
short_description: The arguments of node_facts for each node
author: The rdm-provision developers
description:
  - They are the same as those of the ordinary task in the role preflight.
positional: _input, lock, locks
options:
  _input:
    description: RV(rdm.provision.plan#module:state_files).
    type: dict
    required: true
  lock:
    description: RV(rdm.provision.plan#module:lock).
    type: dict
    default: {}
  locks:
    description: Whether to take the lock even on nodes without work.
    type: bool
    default: false
"""

RETURN = r"""
_value: {description: The arguments by node., type: dict}
"""


def gather_arguments(
    state_files: Mapping[str, Mapping[str, Any]], lock: Mapping[str, Any] | None = None, locks: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the arguments by node, the same as those of the ordinary task in the role preflight."""
    everywhere: dict[str, Any] = {"lock": dict(lock)} if lock else {}
    return {
        node: {
            "config_dir": one["config_dir"],
            "node": node,
            "state_file_directory": one["directory"],
            "inputs": one["inputs"],
            "key_digests": one["key_digests"],
            "sriov": one["sriov"],
            "addresses": one["addresses"],
            "mirrors": one["mirrors"],
            "locks": locks or bool(one["absent"]),
            **everywhere,
        }
        for node, one in state_files.items()
    }


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"gather_arguments": gather_arguments}
