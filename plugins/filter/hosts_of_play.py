# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the hosts of a play by the work that an earlier play found."""

from __future__ import annotations

from typing import Any

from ansible import context
from ansible.errors import AnsibleFilterError

NOBODY = "!all"
EVERYBODY = "master:workers"


def hosts_of_play(work: Any, part: str) -> Any:
    """Return the value of a play's `hosts`, or a pattern that no host matches.

    Args:
        work: the result of the action `work`; undefined if no facts were gathered.
        part: which play: a role's name, `absent`, `state_file`, `release` or `verify`.

    Raises:
        AnsibleFilterError: the work is not known, since no facts were gathered.
    """
    if work:
        return work["plays"][part] or NOBODY
    arguments = context.CLIARGS
    if any(arguments.get(name) for name in ("listhosts", "listtasks", "listtags", "syntax")):
        return EVERYBODY
    given = [option for option, name in _SKIPPERS.items() if arguments.get(name)]
    how = f"leave out {' and '.join(given)}" if given else "run the play that gathers facts first"
    raise AnsibleFilterError(
        f"no facts were gathered, so it is not known which nodes have work: {how}, and choose "
        "parts of the run with --tags"
    )


_SKIPPERS = {"--start-at-task": "start_at_task", "--skip-tags": "skip_tags"}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"hosts_of_play": hosts_of_play}
