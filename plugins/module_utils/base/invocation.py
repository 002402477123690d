# SPDX-License-Identifier: GPL-3.0-or-later
"""Leaves a module's arguments out of its result.

Ansible keeps the results of all nodes until the last one has ended, and shows the arguments with -vvv only.
One argument is the list of all nodes: the controller would keep N times N lines.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

from typing import Any, Dict

DEBUGGING = 3  # with -vvv Ansible shows the arguments


def echo(module: Any) -> Dict[str, Any]:
    """Return the further arguments of exit_json and fail_json."""
    return {} if module._verbosity >= DEBUGGING else {"invocation": {}}
