# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the hosts of a play by the work that an earlier play found; see DOCUMENTATION."""

from __future__ import annotations

import functools
from typing import Any

from ansible import context
from ansible.errors import AnsibleFilterError
from ansible.plugins.loader import lookup_loader
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory import role_specs

DOCUMENTATION = r"""
name: hosts_of_play
short_description: The hosts of a play, by the work that an earlier play found
author: The rdm-provision developers
description:
  - A pattern that no host matches where there is no work.
  - Also loads what most tasks need into the process that forks the workers.
  - A pattern of hosts is returned as it is.
positional: _input, part
options:
  _input:
    description:
      - The result of M(rdm.provision.work), undefined if no facts were gathered.
      - Or a pattern of hosts.
    type: raw
    required: true
  part:
    description: Which play; a role's name, C(absent), C(state_file), C(release) or C(verify).
    type: str
    default: ""
"""

RETURN = r"""
_value: {description: The value of the play's C(hosts)., type: raw}
"""

NOBODY = "!all"
EVERYBODY = "master:workers"


def hosts_of_play(work: Any, part: str = "") -> Any:
    """Return the value of a play's `hosts`, or a pattern that no host matches.

    Raises:
        AnsibleFilterError: the work is not known, since no facts were gathered.
    """
    if work:
        _load_for_workers()
        return work if isinstance(work, str) else work["plays"][part] or NOBODY
    arguments = context.CLIARGS
    if any(arguments.get(name) for name in ("listhosts", "listtasks", "listtags", "syntax")):
        return EVERYBODY
    given = [option for option, name in _SKIPPERS.items() if arguments.get(name)]
    how = f"leave out {' and '.join(given)}" if given else "run the play that gathers facts first"
    raise AnsibleFilterError(
        f"no facts were gathered, so it is not known which nodes have work: {how}, and choose "
        "parts of the run with --tags"
    )


@functools.cache
def _load_for_workers() -> None:
    """Load what most tasks of these plays need.

    Ansible evaluates `hosts` in the process that forks a worker for each task and node. Otherwise each worker
    would import the desired state and parse the roles' argument_specs, which costs as much as a module call.
    """
    lookup_loader.get("rdm.provision.desired")
    role_specs.options()


_SKIPPERS = {"--start-at-task": "start_at_task", "--skip-tags": "skip_tags"}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"hosts_of_play": hosts_of_play}
