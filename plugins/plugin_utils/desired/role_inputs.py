# SPDX-License-Identifier: GPL-3.0-or-later
"""What a role's work on a node depends on, as a digest that can be compared from run to run.

Evaluating all variables of a role takes some 100 ms per host, so they are not evaluated: a value counts as it
was written, together with every variable that its templates refer to, and those that these refer to. Where a
template refers to something that nobody can know beforehand (a lookup, the time, another host's facts), there
is no digest, and the role looks for itself.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import jinja2.filters
import jinja2.nodes
import jinja2.tests
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.play_variables import as_written

CLUSTER_WIDE = ("rdm_cluster", "rdm_become", "rdm_config_dir", "rdm_docker_socket")
"""Cluster-wide variables that roles read themselves. The others reach them through the plan."""

# What Jinja and Ansible give every template, and what is the same in every run.
_HARMLESS = {"omit", "undef", "range", "dict", "namespace", "true", "false", "none", "inventory_hostname"}
_UNKNOWABLE = {"hostvars", "vars", "ansible_facts", "lookup", "query", "q", "now"}
_LOCAL_TO_TEMPLATE = {"loop", "self", "super", "varargs", "kwargs", "caller"}
# Of Ansible's filters and tests these are known to give the same for the same. Others may read files, or the
# clock, or chance.
_ANSIBLE_FILTERS = """
    b64decode b64encode basename bool checksum combinations combine comment dict2items difference dirname
    extract flatten from_json from_yaml hash human_readable human_to_bytes intersect items2dict mandatory md5
    path_join permutations product quote regex_escape regex_findall regex_replace regex_search sha1 split
    splitext subelements symmetric_difference ternary to_json to_nice_json to_nice_yaml to_yaml type_debug
    union unique zip zip_longest
"""
_ANSIBLE_TESTS = """
    all any contains falsy issubset issuperset match nan regex search subset superset truthy version
    version_compare
"""
_PURE_FILTERS = set(jinja2.filters.FILTERS) - {"random"} | set(_ANSIBLE_FILTERS.split())
_PURE_TESTS = set(jinja2.tests.TESTS) | set(_ANSIBLE_TESTS.split())

# Packed modules of Python, which it also writes under temporary names, and parts that no node depends on.
_NO_CODE = {"__pycache__", "doc_fragments", "lab"}
_DOCUMENTATION = re.compile(rb'^(?:DOCUMENTATION|EXAMPLES|RETURN) = r?""".*?^"""$', re.DOTALL | re.MULTILINE)


class RoleInputs:
    """Makes the digests.

    Args:
        code: the directories with the collection's own files; a change of code there is another input for
            every role.
        options: role -> the names of its variables.
        defaults: the roles' defaults as they are written.
    """

    def __init__(
        self, code: Iterable[Path], options: Mapping[str, Iterable[str]], defaults: Mapping[str, Any]
    ) -> None:
        self._code = code_digest(tuple(code))
        self._options = options
        self._defaults = defaults

    def digest(self, role: str, variables: Mapping[str, Any], more: Any) -> str:
        """Return the digests for a role on a node, joined by `-`: of the code, the variables, and the rest.

        Empty when they cannot be told.

        Args:
            role: name of the role.
            variables: the host's variables as they are written.
            more: what else counts: anything that :mod:`json` can write.
        """
        known: dict[str, Any] = {}
        for name in (*CLUSTER_WIDE, *self._options[role]):
            if not self._collect(name, variables, known):
                return ""
        try:
            return "-".join((self._code, _digest(known), _digest(more)))
        except TypeError:  # keys of a dictionary that have no order
            return ""

    def _collect(self, name: str, variables: Mapping[str, Any], known: dict[str, Any]) -> bool:
        """Add a variable, and all that it refers to, to the known; return whether that can be known."""
        if name in known:
            return True
        given = name in variables
        known[name] = [variables[name]] if given else []
        for reference in _references(variables[name] if given else self._defaults.get(name)):
            if reference in _HARMLESS:
                continue
            if (reference in variables and reference not in _UNKNOWABLE) or reference in self._defaults:
                if not self._collect(reference, variables, known):
                    return False
            elif given:
                return False
            # Else it is a default of ours, which refers to the plan, or to what the node reports.
        return True


@functools.cache
def code_digest(directories: tuple[Path, ...]) -> str:
    """Return the digest of the code below these directories, by name and content.

    Neither documentation counts, nor what belongs to the lab, nor what an editor or Python itself puts there.
    """
    state = hashlib.sha256()
    for directory in directories:
        for folder, inner, names in os.walk(directory):
            inner[:] = sorted(name for name in inner if name[0] != "." and name not in _NO_CODE)
            for path in (Path(folder, name) for name in sorted(names) if _is_code(name)):
                content = _DOCUMENTATION.sub(b"", path.read_bytes())
                state.update(f"{path.relative_to(directory)}\0".encode())
                state.update(hashlib.sha256(content).digest())
    return state.hexdigest()[:16]


def _is_code(name: str) -> bool:
    return not (name.startswith((".", "lab.", "lab_")) or name.endswith(("~", ".md", ".pyc")))


def _references(value: Any) -> Iterator[str]:
    """Yield the names that the templates in a value refer to; `lookup` for what cannot be known."""
    if isinstance(value, str):
        if "{{" in value or "{%" in value:
            yield from _parsed(str(value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _references(key)
            yield from _references(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _references(item)


@functools.lru_cache(maxsize=4096)
def _parsed(template: str) -> frozenset[str]:
    try:
        tree = _JINJA.parse(template)
    except jinja2.TemplateError:
        return frozenset({"lookup"})
    filters = {_short(node.name) for node in tree.find_all(jinja2.nodes.Filter)}
    tests = {_short(node.name) for node in tree.find_all(jinja2.nodes.Test)}
    others = (jinja2.nodes.Include, jinja2.nodes.Import, jinja2.nodes.FromImport, jinja2.nodes.Extends)
    pure = filters <= _PURE_FILTERS and tests <= _PURE_TESTS and not any(tree.find_all(others))
    names = list(tree.find_all(jinja2.nodes.Name))
    made = {node.name for node in names if node.ctx != "load"} | _LOCAL_TO_TEMPLATE
    read = {node.name for node in names if node.ctx == "load"} - made
    return frozenset(read if pure else read | {"lookup"})


def _short(name: str) -> str:
    return name.removeprefix("ansible.builtin.")


_JINJA = jinja2.Environment()  # noqa: S701 - nothing is rendered


def _digest(value: Any) -> str:
    return hashlib.sha256(as_written(value).encode()).hexdigest()[:16]
