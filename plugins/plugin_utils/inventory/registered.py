# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hosts of a play have registered, for actions that collect it on the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ALL = "_all"
"""What is added to the name under which each host registers a result, where one task has those of all."""


def registered(
    name: str, task_vars: Mapping[str, Any], hosts: Sequence[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return what each host registered under a name, or has there from the action run_on_all.

    Args:
        name: the name.
        task_vars: of the task.
        hosts: the hosts, None for those of the play; those that have nothing are left out.
    """
    found = {}
    for host in hosts or task_vars["ansible_play_hosts_all"]:
        # Raw, because a registered result holds no templates, and templating all variables of a thousand
        # hosts takes minutes.
        result = answer(name, host, task_vars["hostvars"].raw_get(host))
        if result is not None:
            found[host] = result
    return found


def answer(name: str, host: str, raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what one host has under a name.

    Args:
        name: as a task registered it.
        host: whose answer.
        raw: the host's variables.
    """
    mine, everybody = raw.get(name), raw.get(name + ALL)
    answered = (everybody.get("answers") or {}).get(host) if isinstance(everybody, dict) else None
    # A host's own task follows the task for all hosts, and is skipped if it is not needed.
    if isinstance(mine, dict) and not (answered and mine.get("skipped")):
        return mine
    return answered
