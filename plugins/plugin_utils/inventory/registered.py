# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect what the hosts of a play registered, for actions on the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ALL = "_all"
"""Suffix of the name under which one task registers the results of all hosts."""


def registered(
    name: str, task_vars: Mapping[str, Any], hosts: Sequence[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return each host's result under a name, from its own task or from the action run_on_all.

    Args:
        name: the name.
        task_vars: of the task.
        hosts: the hosts; None for those of the play. Hosts without a result are left out.
    """
    found = {}
    for host in hosts or task_vars["ansible_play_hosts_all"]:
        # Raw: a registered result holds no templates, and templating all variables of a thousand hosts
        # takes minutes.
        result = answer(name, host, task_vars["hostvars"].raw_get(host))
        if result is not None:
            found[host] = result
    return found


def answer(name: str, host: str, raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return one host's result under a name; None for none.

    Args:
        name: the registered name.
        host: the host.
        raw: the host's unevaluated variables.
    """
    mine, everybody = raw.get(name), raw.get(name + ALL)
    answered = (everybody.get("answers") or {}).get(host) if isinstance(everybody, dict) else None
    # A host's own task comes after the task for all hosts, and is skipped if that one answered.
    if isinstance(mine, dict) and not (answered and mine.get("skipped")):
        return mine
    return answered
