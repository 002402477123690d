# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hosts of a play have registered, for actions that collect it on the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def registered(name: str, task_vars: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what each host of the play registered under a name; hosts without it are left out."""
    found = {}
    for host in task_vars["ansible_play_hosts_all"]:
        # Raw, because a registered result holds no templates, and templating all variables of a thousand
        # hosts takes minutes.
        result = task_vars["hostvars"].raw_get(host).get(name)
        if isinstance(result, dict):
            found[host] = result
    return found
