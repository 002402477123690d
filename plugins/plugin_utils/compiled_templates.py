# SPDX-License-Identifier: GPL-3.0-or-later
"""Compile each template once in a run, not once in each of its processes.

Ansible forks a process for each task and node, and compiles there every template that the task's arguments
come from. Here the first one to meet a template leaves the compiled code in a directory of the run, where the
others find it. What a template evaluates to is not kept.

Code goes by the template's text and all that Jinja's compiler is told besides. Filters are looked up by their
names, which mean the same all through a run.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import marshal
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from ansible._internal._templating._jinja_bits import (
    _TEMPLATE_OVERRIDE_FIELD_NAMES,
    AnsibleEnvironment,
    _TemplateCompileContext,
)
from jinja2.environment import TemplateExpression

_expression: contextvars.ContextVar[str | None] = contextvars.ContextVar("expression", default=None)
"""The key of the expression that is being compiled."""


class Store:
    """Compiled code by keys, shared by the processes of a run.

    Args:
        directory: where it is; nobody else may write to it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, CodeType] = {}

    def find(self, key: str) -> CodeType | None:
        """Return what this process, or another one, has compiled; None where none has."""
        if key not in self._known:
            with contextlib.suppress(OSError, EOFError, ValueError, TypeError):
                self._known[key] = marshal.loads((self._directory / key).read_bytes())  # noqa: S302  # the run's own
        return self._known.get(key)

    def keep(self, key: str, code: CodeType) -> CodeType:
        """Keep code for all processes, and return it."""
        self._known[key] = code
        with contextlib.suppress(OSError):
            scratch, name = tempfile.mkstemp(dir=self._directory)
            with os.fdopen(scratch, "wb") as file:
                file.write(marshal.dumps(code))
            os.replace(name, self._directory / key)
        return code


def install(store: Store) -> None:
    """Let Ansible's templates take their code from a store, in this process and those that it forks."""
    template: Callable[..., Any] = AnsibleEnvironment.compile
    expression: Callable[..., Any] = AnsibleEnvironment.compile_expression

    def compile_template(self: AnsibleEnvironment, source: Any, *args: Any, **kwargs: Any) -> Any:
        # Jinja compiles an expression as a template of nodes, which has no text.
        key = _key("template", self, source) if isinstance(source, str) else _expression.get()
        if key is None or args or kwargs:
            return template(self, source, *args, **kwargs)
        return store.find(key) or store.keep(key, template(self, source))

    def compile_expression(self: AnsibleEnvironment, source: str, undefined_to_none: bool = True) -> Any:
        key = _key("expression", self, source)
        code = store.find(key) if key else None
        if code is not None:
            found = self.template_class.from_code(self, code, self.make_globals(None), None)
            return TemplateExpression(found, undefined_to_none)
        token = _expression.set(key)
        try:
            return expression(self, source, undefined_to_none)
        finally:
            _expression.reset(token)

    AnsibleEnvironment.compile = compile_template
    AnsibleEnvironment.compile_expression = compile_expression


def _key(kind: str, environment: AnsibleEnvironment, source: str) -> str | None:
    """Return what names a template's code; None where Ansible does not ask, or is to show the source."""
    context = _TemplateCompileContext.current(optional=True)
    if context is None or environment._debuggable_template_source:
        return None
    settings = [getattr(environment, name) for name in _TEMPLATE_OVERRIDE_FIELD_NAMES]
    told = repr([kind, context.escape_backslashes, *settings])
    return hashlib.sha256("\0".join((told, source)).encode("utf-8", "surrogatepass")).hexdigest()
