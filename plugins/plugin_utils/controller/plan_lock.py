# SPDX-License-Identifier: GPL-3.0-or-later
"""One process at a time plans."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ansible_collections.rdm.provision.plugins.plugin_utils.controller.cluster_lock import (
    brief_lock,
    state_folder,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.host_variables import (
    HostVariables,
)

PLANNING_S = 60.0
"""How long to wait for another process that plans, in seconds."""


@contextlib.contextmanager
def alone(reader: HostVariables, writes: bool) -> Iterator[None]:
    """Let one process at a time read the plan file, decide, and write it: two would give one address twice.

    Refused when another one takes too long.
    """
    with contextlib.ExitStack() as stack:
        path = reader.real_plan_file() if writes else None
        if path is not None:
            try:
                stack.enter_context(brief_lock(state_folder(path.parent) / "lock.plan", PLANNING_S))
            except TimeoutError:
                reason = f"has been in work by another process for {PLANNING_S:.0f} s"
                raise PreconditionFailed(
                    [Problem(None, str(path), reason, "try again when that has ended")]
                ) from None
            except OSError:
                pass  # then it cannot be written either, which is reported later
        yield
