"""List an inventory as ansible-inventory does, then print the plan. Run as a script by :mod:`inventory`.

Ansible starts, and reads the inventory, once instead of twice.
"""

from __future__ import annotations

import contextlib
import json
import sys

from ansible.cli.inventory import InventoryCLI
from ansible.vars.hostvars import HostVars


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

        hostvars = HostVars(self.inventory, self.vm, self.loader)
        variables = {"hostvars": hostvars, "groups": self.inventory.get_groups_dict()}
        draft = draft_plan(HostVariables(variables, loader=self.loader), [])
        return json.dumps({**draft.result(), "saved": draft.saved, "warnings": draft.warnings})


if __name__ == "__main__":
    PlannedInventory.cli_executor()
