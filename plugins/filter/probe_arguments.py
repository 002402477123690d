# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the arguments of `fabric_probe` for all nodes of a run; see DOCUMENTATION."""

from __future__ import annotations

from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.verify import probe_arguments

DOCUMENTATION = r"""
name: probe_arguments
short_description: The options of fabric_probe that differ from node to node
author: The rdm-provision developers
description:
  - For M(rdm.provision.run_on_all).
positional: _input
options:
  _input:
    description: The part of the role verify, as P(rdm.provision.desired#lookup) returns it.
    type: dict
    required: true
"""

RETURN = r"""
_value: {description: The options by node., type: dict}
"""


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"probe_arguments": probe_arguments}
