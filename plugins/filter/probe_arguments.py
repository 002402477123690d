# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the arguments of `fabric_probe` for all nodes of a run."""

from __future__ import annotations

from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.verify import probe_arguments


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"probe_arguments": probe_arguments}
