# SPDX-License-Identifier: GPL-3.0-or-later
"""What the actions that decide on the controller have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Literal

import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.task_arguments import let_go
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.renamed_variables import notices

_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXTS = ("description", "version_added", "sample")


def documented_options(documentation: str, no_log: Collection[str] = ()) -> dict[str, Any]:
    """Return the argument_spec of an action: the options that its module documents.

    Args:
        documentation: of the module of the same name.
        no_log: the options whose values are secret.
    """
    options = yaml.load(documentation, Loader=_YAML).get("options") or {}  # noqa: S506
    return {
        name: {key: value for key, value in option.items() if key not in _TEXTS}
        | ({"no_log": True} if name in no_log else {})
        for name, option in options.items()
    }


class Decision(ActionBase):
    """An action that runs once, on the controller: it decides, refuses, evaluates, or coordinates nodes.

    Attributes:
        ARGUMENTS: the options that the module of the same name documents; see documented_options.
        REQUIRED_IF: which options another one's value asks for, as Ansible writes it.
        STAGE: what a refusal is about: the inventory, or what nodes have answered.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    ARGUMENTS: ClassVar[dict[str, Any]]
    REQUIRED_IF: ClassVar[Sequence[tuple[str, Any, Sequence[str]]]] = ()
    STAGE: ClassVar[Literal["inventory", "nodes"]] = "nodes"

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the decision, or the refusal."""
        variables: dict[str, Any] = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        _, options = self.validate_argument_spec(self.ARGUMENTS, required_if=self.REQUIRED_IF)
        result["changed"] = False
        # With a plan the notices have been given already. Without one, a role is used alone.
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
        let_go(self._task)
        return result

    @abstractmethod
    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return what the task returns.

        Args:
            options: the task's options, checked.
            variables: the host's variables.

        Raises:
            PreconditionFailed: of it the task's failure is made.
        """
