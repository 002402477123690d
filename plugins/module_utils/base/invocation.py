# SPDX-License-Identifier: GPL-3.0-or-later
"""What a module repeats of its arguments in its result.

Ansible keeps the results of all nodes until the last has ended, and shows what they repeat with -vvv only.
The list of the cluster's nodes is an argument, so that they would take N times N lines on the controller.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

from typing import Any, Dict

DEBUGGING = 3  # with -vvv Ansible shows the arguments, so that all of them are wanted


def echo(module: Any) -> Dict[str, Any]:
    """Return what exit_json and fail_json get besides the result."""
    return {} if module._verbosity >= DEBUGGING else {"invocation": {}}
