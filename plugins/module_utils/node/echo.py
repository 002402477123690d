# SPDX-License-Identifier: GPL-3.0-or-later
"""What a module repeats of its arguments in its result.

Ansible keeps the result of every node, and each repeats all arguments unless the module says otherwise. The
list of the cluster's nodes is an argument, so that they would take N times N lines on the controller.
"""

from __future__ import annotations

from typing import Any, Dict

LONGEST = 200  # characters of one value
MOST = 20  # entries of one list or dictionary
DEBUGGING = 3  # with -vvv Ansible shows the arguments, so that all of them are wanted


def echo(module: Any) -> Dict[str, Any]:
    """Return what exit_json and fail_json are to be given beside the result."""
    if module._verbosity >= DEBUGGING:
        return {}
    return {"invocation": {"module_args": shortened(module.params)}}


def shortened(value: Any) -> Any:
    """Return a value with what is long in it replaced by its size.

    Nothing is cut: Ansible hides a secret where it finds the whole of it.
    """
    if isinstance(value, str):
        return value if len(value) <= LONGEST else "({0} characters)".format(len(value))
    if isinstance(value, (list, dict)) and len(value) > MOST:
        return "({0} entries)".format(len(value))
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shortened(item) for item in value]
    return value
