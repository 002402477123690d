"""A stand-in for rdma/sriov-plugin: the same protocol, spoken by rdm-sriov, and its way with VFs.

    python upstream_plugin.py FILE [options of rdm-sriov]

When its last network is deleted it writes 0 to FILE, the sriov_numvfs of the physical function.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".collections"))

from ansible_collections.rdm.provision.plugins.module_utils.sriov import plugin
from ansible_collections.rdm.provision.plugins.module_utils.sriov.driver import Driver


class Upstream(Driver):
    """See above."""

    def answer(self, call: str, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one call of the engine."""
        answer = super().answer(call, request)
        if call == "NetworkDriver.DeleteNetwork" and not self._state.networks:
            Path(sys.argv[1]).write_text("0")
        return answer


if __name__ == "__main__":
    setattr(plugin, "Driver", Upstream)  # noqa: B010  # mypy takes the name for the import's
    sys.exit(plugin.main(sys.argv[2:]))
