# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a module, and leaves its arguments out of its result.

Ansible keeps the results of all nodes until the last one has ended, and shows the arguments with -vvv only.
One argument is the list of all nodes: the controller would keep N times N lines.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

from typing import Any, Callable, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError

DEBUGGING = 3  # with -vvv Ansible shows the arguments


def echo(module: Any) -> Dict[str, Any]:
    """Return the further arguments of exit_json and fail_json."""
    return {} if module._verbosity >= DEBUGGING else {"invocation": {}}


def as_module(
    arguments: Dict[str, Any], check_mode: bool = True, **rules: Any
) -> Callable[[Callable[[AnsibleModule], Dict[str, Any]]], Callable[[], None]]:
    """Make a function the `main` of a module, which ends with its result or fails with one sentence.

    The sentence is that of a NodeError, or made of an OSError.

    Args:
        arguments: the module's argument_spec.
        check_mode: whether it supports check mode; else Ansible skips it there.
        rules: between its arguments, such as required_if.
    """

    def decorate(run: Callable[[AnsibleModule], Dict[str, Any]]) -> Callable[[], None]:
        def main() -> None:
            module = AnsibleModule(arguments, supports_check_mode=check_mode, **rules)
            try:
                result = run(module)
            except NodeError as error:
                module.fail_json(msg=error.sentence, **error.result, **echo(module))
            except OSError as error:
                # Reads, writes and connections can all fail without the name of a file.
                where = error.filename or "the operating system reports"
                module.fail_json(msg="{0}: {1}".format(where, error.strerror or error), **echo(module))
            end = module.fail_json if result.pop("failed", False) else module.exit_json
            end(**{"changed": False, **result, **echo(module)})

        return main

    return decorate
