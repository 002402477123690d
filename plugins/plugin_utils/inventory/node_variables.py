# SPDX-License-Identifier: GPL-3.0-or-later
"""One node's variables, as the roles see them."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory import role_specs


class NodeVariables:
    """Reads variables one by one: the node's value or the default, with the type from argument_specs.

    Args:
        given: the names of the variables that the node has.
        evaluate: returns the value of one of them.
        early: whether a variable that refers to something undefined has no value yet; otherwise reading it
            raises AnsibleError.

    Attributes:
        missed: whether such a variable was read; the reader resets it.
    """

    def __init__(self, given: Container[str], evaluate: Callable[[str], Any], *, early: bool = False) -> None:
        self._given = given
        self._evaluate = evaluate
        self._early = early
        self._known: dict[str, Any] = {}
        self._unknown: set[str] = set()
        self.missed = False

    @property
    def names_read(self) -> list[str]:
        """The names of the variables that were read so far, sorted."""
        return sorted(self._known)

    def value(self, name: str) -> Any:
        """Return a variable's value; None for none."""
        if name not in self._known:
            self._known[name] = self._read(name)
        if name in self._unknown:
            self.missed = True
        return self._known[name]

    def _read(self, name: str) -> Any:
        if name not in self._given:
            return role_specs.typed_default(name)
        try:
            return role_specs.typed(name, self._evaluate(name))[0]
        except AnsibleError as error:
            if not self._early:
                reason = str(error.message).rstrip(". ")
                raise AnsibleError(f"{name} cannot be evaluated: {reason}", obj=error.obj) from None
            self._unknown.add(name)
            return None

    def text(self, name: str) -> str:
        """Return a variable as text; empty if it has no value."""
        value = self.value(name)
        return "" if value is None else str(value)

    def number(self, name: str) -> int:
        """Return a variable as a number; 0 if it has no value or is not a number."""
        text = self.text(name)
        return int(text) if text.isdigit() else 0

    def true(self, name: str, otherwise: bool = False) -> bool:
        """Return a variable as a truth value."""
        value = self.value(name)
        return otherwise if value is None else bool(boolean(value, strict=False))

    def texts(self, name: str) -> list[str]:
        """Return a variable as a list of texts; empty if it has no value."""
        value = self.value(name)
        if value is None:
            return []
        return [str(item) for item in (value.split(",") if isinstance(value, str) else value)]
