# SPDX-License-Identifier: GPL-3.0-or-later
"""The base class of the actions that decide on the controller."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.task_arguments import (
    drop_arguments,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.renamed_variables import notices

_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXTS = ("description", "version_added", "sample")


def _documented_options(action: str, no_log: Collection[str]) -> dict[str, Any]:
    """Return the argument_spec of an action from the documentation of the module of the same name."""
    module = importlib.import_module(f"ansible_collections.rdm.provision.plugins.modules.{action}")
    options = yaml.load(module.DOCUMENTATION, Loader=_YAML).get("options") or {}  # noqa: S506
    return {
        name: {key: value for key, value in option.items() if key not in _TEXTS}
        | ({"no_log": True} if name in no_log else {})
        for name, option in options.items()
    }


def renamed_options(spec: Mapping[str, Any], given: Collection[str]) -> list[str]:
    """Return a notice for each given option that has a new name; all aliases are former names."""
    return [
        f"The option {former} is called {name} now: rename it, the next release does not know it."
        for name, option in spec.items()
        for former in option.get("aliases", ())
        if former in given
    ]


class Decision(ActionBase):
    """An action that runs once, on the controller: it decides, checks, evaluates, or coordinates nodes.

    Attributes:
        ARGUMENTS: the argument_spec; by default from the documentation of the module of the same name.
        SECRETS: the options of that module whose values are secret.
        REQUIRED_IF: Ansible's required_if.
        STAGE: what a precondition failure is about: the inventory, or the nodes' results.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    ARGUMENTS: ClassVar[dict[str, Any]]
    SECRETS: ClassVar[Collection[str]] = ()
    REQUIRED_IF: ClassVar[Sequence[tuple[str, Any, Sequence[str]]]] = ()
    STAGE: ClassVar[Literal["inventory", "nodes"]] = "nodes"

    def __init_subclass__(cls) -> None:
        """Read the argument_spec, unless the class has one."""
        if "ARGUMENTS" not in vars(cls):
            cls.ARGUMENTS = _documented_options(cls.__module__.rpartition(".")[2], cls.SECRETS)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the decision, or the precondition failure."""
        variables: dict[str, Any] = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        _, options = self.validate_argument_spec(self.ARGUMENTS, required_if=self.REQUIRED_IF)
        for notice in renamed_options(self.ARGUMENTS, self._task.args):
            self._display.warning(notice)
        result["changed"] = False
        # The action `plan` shows these notices in a run; without a plan, a role is used alone.
        for notice in notices(variables) if "preflight_plan" not in variables else ():
            self._display.warning(notice)
        try:
            result.update(self.decide(options, variables))
        except PreconditionFailed as refused:
            result.update(refused.result(self.STAGE))
        except OSError as error:
            if not error.filename:
                raise
            reason = f"cannot be used: {error.strerror}"
            problem = Problem(None, str(error.filename), reason, "let this user read and write there")
            result.update(PreconditionFailed([problem]).result(self.STAGE))
        drop_arguments(self._task)
        return result

    @abstractmethod
    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return what the task returns.

        Args:
            options: the task's options, validated.
            variables: the host's variables.

        Raises:
            PreconditionFailed: it becomes the task's failure.
        """
