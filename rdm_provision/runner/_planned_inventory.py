"""List an inventory as ansible-inventory does, then print the plan. Run as a script by :mod:`inventory`.

Ansible starts, and reads the inventory, once instead of twice.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

from ansible.cli.inventory import InventoryCLI


class PlannedInventory(InventoryCLI):  # type: ignore[misc]  # Ansible has no types
    """ansible-inventory that prints the plan after its list."""

    def run(self) -> None:
        """List the inventory, then print what the action ``plan`` returns.

        Print nothing if there is no plan: the action, in a run of its own, reports why.
        """
        try:
            super().run()
        except SystemExit as end:
            if not end.code:
                with contextlib.suppress(Exception):
                    sys.stdout.write(self._plan())
                    sys.stdout.flush()
            raise

    def _plan(self) -> str:
        from ansible_collections.rdm.provision.plugins.plugin_utils.desired.draft import draft_plan
        from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.host_variables import (
            HostVariables,
        )

        def written(name: str) -> dict[str, Any]:
            """Return a host's unevaluated variables."""
            host = self.inventory.get_host(name)
            found: dict[str, Any] = self.vm.get_vars(host=host, include_hostvars=False)
            return found

        groups = {"groups": self.inventory.get_groups_dict()}
        draft = draft_plan(HostVariables(groups, written, self.loader), [])
        return json.dumps({**draft.result(), "saved": draft.saved, "warnings": draft.warnings})


if __name__ == "__main__":
    PlannedInventory.cli_executor()
