# SPDX-License-Identifier: GPL-3.0-or-later
"""Compile each template once per run, instead of once in each of its processes.

Ansible forks a process for each task and node, which compiles every template of the task's arguments. Here
the first process to compile a template stores the code in a directory of the run, where the others find it.
Results of templates are not stored.

The key is the template's text and the settings of Jinja's compiler. Filters and tests are resolved by name
when the code runs; the code only contains whether one is passed the context (Jinja's pass_context). If the
keyword `collections` makes a short name differ in that between two plays, the one compiled first would win.

Code contains its template's text, and a killed run leaves its directory behind. So code is not stored for a
template that may come from something encrypted, or from no file, such as the output of an inventory script.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import marshal
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from ansible._internal._datatag._tags import Origin, SourceWasEncrypted, VaultedValue
from ansible._internal._templating._jinja_bits import (
    _TEMPLATE_OVERRIDE_FIELD_NAMES,
    AnsibleEnvironment,
    _TemplateCompileContext,
)
from ansible.parsing.vault import is_encrypted_file
from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from jinja2.environment import TemplateExpression

_expression: contextvars.ContextVar[str | None] = contextvars.ContextVar("expression", default=None)
"""The key of the expression that is currently compiled."""


class Store:
    """Compiled code by keys, shared by the processes of a run.

    Args:
        directory: where the code is stored; no other user may write to it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, CodeType] = {}

    def find(self, key: str) -> CodeType | None:
        """Return code that this or another process has stored; None if none has."""
        if key not in self._known:
            with contextlib.suppress(OSError, EOFError, ValueError, TypeError):
                self._known[key] = marshal.loads((self._directory / key).read_bytes())  # noqa: S302  # the run's own
        return self._known.get(key)

    def keep(self, key: str, code: CodeType) -> CodeType:
        """Store code for all processes, and return it."""
        self._known[key] = code
        with contextlib.suppress(OSError):
            write_whole(str(self._directory / key), marshal.dumps(code), 0o600, durable=False)
        return code


def install(store: Store) -> None:
    """Make Ansible take templates' code from a store, in this process and those that it forks.

    Raises:
        AttributeError, TypeError: this ansible-core lacks what a key needs; nothing is changed.
    """
    with _TemplateCompileContext(escape_backslashes=True):
        _key("template", AnsibleEnvironment(), Origin(path=__file__).tag(""))
    template: Callable[..., Any] = AnsibleEnvironment.compile
    expression: Callable[..., Any] = AnsibleEnvironment.compile_expression

    def compile_template(self: AnsibleEnvironment, source: Any, *args: Any, **kwargs: Any) -> Any:
        # Jinja compiles an expression as a template of nodes, without text.
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
    """Return the key of a template's code; None if it must not be stored, or Ansible shows the source."""
    context = _TemplateCompileContext.current(optional=True)
    if context is None or environment._debuggable_template_source or not _is_open(source):
        return None
    settings = [getattr(environment, name) for name in _TEMPLATE_OVERRIDE_FIELD_NAMES]
    settings_text = repr([kind, context.escape_backslashes, *settings])
    return hashlib.sha256("\0".join((settings_text, source)).encode("utf-8", "surrogatepass")).hexdigest()


def _is_open(source: str) -> bool:
    """Return whether a template comes from a file that is not encrypted."""
    origin = Origin.get_tag(source)
    if origin is None or origin.path is None:
        return False
    encrypted = SourceWasEncrypted.is_tagged_on(source) or VaultedValue.is_tagged_on(source)
    return not encrypted and _is_open_file(origin.path)


@functools.cache
def _is_open_file(path: str) -> bool:
    """Return whether a file can be read and is not encrypted as a whole."""
    try:
        with open(path, "rb") as file:
            return not is_encrypted_file(file)
    except OSError:
        return False
