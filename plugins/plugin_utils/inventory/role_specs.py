# SPDX-License-Identifier: GPL-3.0-or-later
"""The roles' argument_specs: the variables, their types and their defaults."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

ROLES = Path(__file__).resolve().parents[3] / "roles"

_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TYPED: dict[tuple[str, str], tuple[Any, list[str]]] = {}


def role_options() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield every option of every role's argument_specs: role, variable, specification."""
    for role, specs in _role_files("meta/argument_specs.yml"):
        for entry_point in specs["argument_specs"].values():
            for name, option in (entry_point.get("options") or {}).items():
                yield role, name, option


def role_defaults() -> Iterator[tuple[str, Any]]:
    """Yield the unevaluated defaults of all roles."""
    for _, defaults in _role_files("defaults/main.yml"):
        yield from (defaults or {}).items()


@functools.cache
def options() -> Mapping[str, Mapping[str, Any]]:
    """Return every option of every role, by the variable's name."""
    return {name: option for _, name, option in role_options()}


@functools.cache
def cluster_options() -> Mapping[str, Mapping[str, Any]]:
    """Return the options that describe the cluster, by the variable's name."""
    [specs] = [specs for role, specs in _role_files("meta/argument_specs.yml", "preflight")]
    options: Mapping[str, Mapping[str, Any]] = specs["argument_specs"]["cluster"]["options"]
    return options


def default(name: str) -> Any:
    """Return a variable's default; None if it has none, or if that is a template."""
    value = options().get(name, {}).get("default")
    return None if isinstance(value, str) and "{{" in value else value


@functools.cache
def typed_default(name: str) -> Any:
    """Return a variable's default with the type of its specification."""
    return typed(name, default(name))[0]


def typed(name: str, value: Any) -> tuple[Any, list[str]]:
    """Return a variable's value with the type of its specification, and Ansible's error messages.

    Invalid values, values of unknown variables, and None are returned unchanged.
    """
    if value is None or name not in options():
        return value, []
    # Nodes mostly share their variables, and a lookup is cheaper than a validation.
    key = (name, repr(value))
    if key not in _TYPED:
        result = _validator(name).validate({name: value})
        wrong = list(result.error_messages)
        _TYPED[key] = (value if wrong else result.validated_parameters[name]), wrong
    return _TYPED[key]


@functools.cache
def _validator(name: str) -> ArgumentSpecValidator:
    option = {key: item for key, item in options()[name].items() if key != "required"}
    return ArgumentSpecValidator({name: option})


def _role_files(name: str, role: str = "*") -> Iterator[tuple[str, Any]]:
    for path in sorted(ROLES.glob(f"{role}/{name}")):
        # Both loaders are safe ones.
        yield path.parents[1].name, yaml.load(path.read_text(encoding="utf-8"), Loader=_YAML)  # noqa: S506
