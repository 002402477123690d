# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock of the plan file: one process at a time plans."""

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
"""Seconds to wait for another process that plans."""


@contextlib.contextmanager
def alone(reader: HostVariables, writes: bool) -> Iterator[None]:
    """Let one process at a time read the plan file, plan, and write it: two could assign one address twice.

    Raises:
        PreconditionFailed: another process holds the lock for too long.
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
                pass  # the plan cannot be written either, which is reported later
        yield
