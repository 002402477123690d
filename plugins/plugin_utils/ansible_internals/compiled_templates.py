# SPDX-License-Identifier: GPL-3.0-or-later
"""Compile each template once in a run, not once in each of its processes.

Ansible forks a process for each task and node, and compiles there every template that the task's arguments
come from. Here the first one to meet a template leaves the compiled code in a directory of the run, where the
others find it. What a template evaluates to is not kept.

Code goes by the template's text and all that Jinja's compiler is told besides. Filters and tests are looked
up by their names where the code is evaluated; only whether one is passed the context, as by Jinja's
pass_context, is in the code. A short name that is of different kinds in two plays, by their keyword
collections, would be taken for the one that was met first.

Code has its template's text in it. So none is kept of a template that may come from something encrypted: a
run that is killed leaves its directory behind. Nor is that kept of one that stands in no file, as what an
inventory script or a plugin has made: each process compiles it, as ever.
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
            write_whole(str(self._directory / key), marshal.dumps(code), 0o600, durable=False)
        return code


def install(store: Store) -> None:
    """Let Ansible's templates take their code from a store, in this process and those that it forks.

    Raises:
        AttributeError, TypeError: this ansible-core does not have what a key is made of; nothing is changed.
    """
    with _TemplateCompileContext(escape_backslashes=True):
        _key("template", AnsibleEnvironment(), Origin(path=__file__).tag(""))
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
    """Return what names a template's code; None where it is not kept, or Ansible is to show the source."""
    context = _TemplateCompileContext.current(optional=True)
    if context is None or environment._debuggable_template_source or not _is_open(source):
        return None
    settings = [getattr(environment, name) for name in _TEMPLATE_OVERRIDE_FIELD_NAMES]
    told = repr([kind, context.escape_backslashes, *settings])
    return hashlib.sha256("\0".join((told, source)).encode("utf-8", "surrogatepass")).hexdigest()


def _is_open(source: str) -> bool:
    """Tell whether a template stands, for all who may read it, in a file that is not encrypted."""
    origin = Origin.get_tag(source)
    if origin is None or origin.path is None:
        return False
    encrypted = SourceWasEncrypted.is_tagged_on(source) or VaultedValue.is_tagged_on(source)
    return not encrypted and _is_open_file(origin.path)


@functools.cache
def _is_open_file(path: str) -> bool:
    """Tell the same of a file, of whose strings only the name is known."""
    try:
        with open(path, "rb") as file:
            return not is_encrypted_file(file)
    except OSError:
        return False
