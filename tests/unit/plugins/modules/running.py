"""Run a module in this process, as Ansible would on a node."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import yaml
from ansible.module_utils import basic
from ansible.module_utils.testing import patch_module_args


class Failed(Exception):  # noqa: N818  # a module's failure, not an error of the test
    """The message of fail_json, and the rest of its result."""

    def __init__(self, msg: str, result: dict[str, Any]) -> None:
        super().__init__(msg)
        self.result = result


class _Done(Exception):  # noqa: N818
    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result


def run_module(
    module: ModuleType, params: dict[str, Any], *, check: bool = False, diff: bool = False
) -> dict[str, Any]:
    """Return what the module exits with, without the echo of its invocation.

    Raises:
        Failed: it failed; the text is its message.
    """

    def exit_json(self: Any, **result: Any) -> None:
        result.pop("invocation", None)
        raise _Done(json.loads(json.dumps(result)))

    def fail_json(self: Any, msg: str, **result: Any) -> None:
        result.pop("invocation", None)
        raise Failed(msg, result)

    arguments = {**params, "_ansible_check_mode": check, "_ansible_diff": diff}
    originals = basic.AnsibleModule.exit_json, basic.AnsibleModule.fail_json
    basic.AnsibleModule.exit_json, basic.AnsibleModule.fail_json = exit_json, fail_json
    try:
        with patch_module_args(arguments):
            module.main()
    except _Done as done:
        return done.result
    finally:
        basic.AnsibleModule.exit_json, basic.AnsibleModule.fail_json = originals
    raise AssertionError("the module ended without a result")


def documented_options(source: str | dict[str, Any]) -> dict[str, Any]:
    """Convert DOCUMENTATION, or an argument_spec, into one form for comparison."""
    if isinstance(source, str):
        return _options(yaml.safe_load(source).get("options") or {}, "suboptions")
    return _options(source, "options")


def _options(given: dict[str, Any], below: str) -> dict[str, Any]:
    options = {}
    for name, option in given.items():
        options[name] = {
            "type": option.get("type", "str"),
            "required": option.get("required", False),
            "default": option.get("default"),
            "choices": sorted(option.get("choices") or [], key=str),
            "elements": option.get("elements"),
            "options": _options(option.get(below) or {}, below),
        }
    return options
