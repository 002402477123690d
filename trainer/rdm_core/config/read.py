# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML and ``key.sub=value`` overrides → a :class:`~rdm_core.config.schema.Config`, and back."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rdm_core.config.convert import UNREAD, Converter
from rdm_core.config.job import JobConfig
from rdm_core.config.schema import Config
from rdm_core.config.yaml_text import KeyPath, Lines, check_length, key_name, parse, shown, text_of, to_yaml
from rdm_core.errors import ConfigError, Unfit

_J = TypeVar("_J", bound=JobConfig)


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a training's configuration; see :func:`load_as`."""
    return load_as(Config, path, overrides)


def load_as(schema: type[_J], path: Path, overrides: Sequence[str] = ()) -> _J:
    """Read the configuration of a job of one workload.

    Args:
        schema: The workload's schema.
        path: The YAML file.
        overrides: ``key.sub=value``, which override the file; values are YAML.

    Returns:
        The configuration, each key of the right type and within its bounds. Use
        :func:`~rdm_core.config.checks.check` for what must hold between keys.

    Raises:
        ConfigError: With every problem that was found.
    """
    return _read(text_of(path), overrides, str(path), schema)


def load_job(path: Path, overrides: Sequence[str] = ()) -> JobConfig:
    """Read the configuration of a job of any workload, by its key ``workload``; see :func:`load_as`."""
    return _read(text_of(path), overrides, str(path), None)


def load_text(text: str, overrides: Sequence[str] = (), source: str = "the configuration") -> JobConfig:
    """Read a job's configuration from a text; see :func:`load_job`.

    Raises:
        ConfigError: With every problem that was found.
    """
    return _read(text, overrides, source, None)


@typing.overload
def _read(text: str, overrides: Sequence[str], source: str, schema: type[_J]) -> _J: ...
@typing.overload
def _read(text: str, overrides: Sequence[str], source: str, schema: None) -> JobConfig: ...
def _read(text: str, overrides: Sequence[str], source: str, schema: type[JobConfig] | None) -> JobConfig:
    check_length(text, source)
    lines: Lines = {}
    problems: list[str] = []
    twice: list[KeyPath] = []
    mapping = parse(text, source, lines, problems, twice)
    if not isinstance(mapping, dict):
        raise ConfigError([f"{source} must hold keys and values, as `name: my-job`."])
    return _build(mapping, overrides, lines, problems, twice, source, schema)


def from_dict(mapping: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Build a configuration from plain data, as from :meth:`Config.to_dict`; keys may be missing.

    Raises:
        ConfigError: With every problem that was found.
    """
    return _build(dict(mapping), overrides, {}, [], [], "the configuration", Config)


def _parse_overrides(
    overrides: Sequence[str], twice: list[KeyPath]
) -> tuple[list[tuple[list[str], Any]], list[str]]:
    """Split ``key.sub=value`` texts; return (keys, value) pairs of those with keys, and the problems."""
    found: list[tuple[list[str], Any]] = []
    problems: list[str] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not all(key.split(".")):
            problems.append(f"The override {override!r} is not of the form key.sub=value.")
            continue
        try:
            value = parse(text, "", {}, problems, twice, tuple(key.split(".")))
        except ConfigError:
            problems.append(f"The value of the override {shown(override)} is not YAML; quote it.")
            value = UNREAD
        found.append((key.split("."), value))
    return found, problems


def dump(config: JobConfig) -> str:
    """Return the configuration as YAML with every key; :func:`load_job` reads it back."""
    return to_yaml(config.to_dict())


def _build(
    mapping: dict[str, Any],
    overrides: Sequence[str],
    lines: Lines,
    problems: list[str],
    unfit: Sequence[KeyPath],
    source: str,
    schema: type[_J] | None,
) -> _J:
    unfit = [*unfit]
    parsed, wrong = _parse_overrides(overrides, unfit)
    problems = [*problems, *wrong]
    for keys, value in parsed:
        mapping = _with(mapping, keys, value, (), problems, unfit)
        lines = {path: line for path, line in lines.items() if path[: len(keys)] != tuple(keys)}
    converter = Converter(lines, problems, unfit, schema)
    config = converter.job(mapping)
    if problems or config is None:
        if config is not None:
            _hide(config, unfit)
        # An override without a key may be meant for any key, so no value is certain.
        raise ConfigError(problems, source=source, rest=config if len(parsed) == len(overrides) else None)
    return typing.cast("_J", config)


def _hide(config: JobConfig, unfit: Sequence[KeyPath]) -> None:
    """Make keys that do not fit, and the lists and mappings around them, raise Unfit when read."""
    for path in unfit:
        owner: Any = config
        for depth, key in enumerate(path, 1):
            inner = vars(owner).get(str(key))
            if depth == len(path) or not dataclasses.is_dataclass(inner):
                hidden = type(type(owner).__name__, (type(owner),), {str(key): property(_unfit)})
                object.__setattr__(owner, "__class__", hidden)
                break
            owner = inner


def _unfit(_self: Any) -> Any:
    raise Unfit


def _with(
    mapping: dict[str, Any],
    keys: Sequence[str],
    value: Any,
    path: KeyPath,
    problems: list[str],
    unfit: list[KeyPath],
) -> dict[str, Any]:
    """Return a copy of a mapping with a value at the keys."""
    first, *rest = keys
    if not rest:
        return {**mapping, first: value}
    inner = mapping.get(first)
    if inner is None:
        inner = {}
    if inner is UNREAD:
        return mapping
    if not isinstance(inner, dict):
        problems.append(
            f"{key_name((*path, first))} has no keys below it, so {'.'.join(keys)} cannot be set."
        )
        unfit.append((*path, first))
        return mapping
    return {**mapping, first: _with(inner, rest, value, (*path, first), problems, unfit)}
