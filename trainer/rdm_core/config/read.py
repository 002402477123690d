# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML and ``key.sub=value`` overrides → a :class:`~rdm_core.config.schema.Config`, and back."""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from rdm_core.config.job import Bounds, ByPartition, JobConfig, OfFile, at_home
from rdm_core.config.schema import Blend, Config
from rdm_core.config.workloads import WORKLOADS
from rdm_core.errors import ConfigError, Unfit

__all__ = [
    "dump",
    "from_dict",
    "load",
    "load_as",
    "load_job",
    "load_text",
    "resolve",
    "text_of",
    "to_yaml",
]

Path_ = tuple[str | int, ...]
Lines = dict[Path_, int]
_T = TypeVar("_T")
_J = TypeVar("_J", bound=JobConfig)

# PyYAML raises ValueError for a date that does not exist, as 2024-99-99, which may be meant as a partition.
_NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
# A larger text is not a configuration, and would take PyYAML minutes.
_MOST_CHARACTERS = 1 << 20
_MOST_VALUES = 100_000
_MOST_MERGED = 1_000
_DEEPEST = 20
_UNREAD: Any = object()
"""The value of a key whose override cannot be read."""


class _Written(int):
    """An integer in an unusual notation: ``0x10``, ``1_000``."""

    text: str


class _Loader(yaml.SafeLoader):
    """Reads YAML with the usual notation of numbers.

    ``1e-4`` is a number, although YAML 1.1 reads it as text. ``010`` and ``1:30`` are text, although it reads
    them as 8 and 90.
    """

    values = 0
    """The number of values read so far; those of an alias count at each use."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Read a value, with a limit on the depth: PyYAML would take seconds to reach its own limit."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise yaml.YAMLError("it is nested too deeply")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Insert the keys of ``<<``, with a limit on their number: nested merges multiply it."""
        super().flatten_mapping(node)
        if len(node.value) > _MOST_MERGED:
            raise yaml.YAMLError(f"a mapping has more than {_MOST_MERGED:,} keys")

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Return an integer; one in an unusual notation keeps its text."""
        number = super().construct_yaml_int(node)
        if str(number) == node.value:
            return number
        written = _Written(number)
        written.text = str(node.value)
        return written


class _Dumper(yaml.SafeDumper):
    """Writes YAML, with quotes around text that the loader would read as a number."""


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_NUMBERS = {
    "int": r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)\Z",
    "float": r"([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z",
}
_EXPONENT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+\Z")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), list("-+.0123456789"))
for _cls in (_Loader, _Dumper):
    _cls.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


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

    Args:
        text: YAML.
        overrides: As for :func:`load_as`.
        source: Its name in messages.

    Raises:
        ConfigError: With every problem that was found.
    """
    return _read(text, overrides, source, None)


@typing.overload
def _read(text: str, overrides: Sequence[str], source: str, schema: type[_J]) -> _J: ...
@typing.overload
def _read(text: str, overrides: Sequence[str], source: str, schema: None) -> JobConfig: ...
def _read(text: str, overrides: Sequence[str], source: str, schema: type[JobConfig] | None) -> JobConfig:
    _bound(text, source)
    lines: Lines = {}
    problems: list[str] = []
    twice: list[Path_] = []
    mapping = _parse(text, source, lines, problems, twice)
    if not isinstance(mapping, dict):
        raise ConfigError([f"{source} must hold keys and values, as `name: my-job`."])
    return _build(mapping, overrides, lines, problems, twice, source, schema)


def text_of(path: Path) -> str:
    """Return a file's text.

    Raises:
        ConfigError: The file cannot be read, or is not text.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except UnicodeDecodeError:
        raise ConfigError([f"{path} is not text in UTF-8."]) from None
    except OSError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror}."]) from None
    _bound(text, str(path))
    return text


def _bound(text: str, source: str) -> None:
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(
            [f"{source} has more than {_MOST_CHARACTERS:,} characters, as no configuration has."]
        )


def from_dict(mapping: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Build a configuration from plain data, as from :meth:`Config.to_dict`; keys may be missing.

    Raises:
        ConfigError: With every problem that was found.
    """
    return _build(dict(mapping), overrides, {}, [], [], "the configuration", Config)


def _parse_overrides(
    overrides: Sequence[str], twice: list[Path_]
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
            value = _parse(text, "", {}, problems, twice, tuple(key.split(".")))
        except ConfigError:
            problems.append(f"The value of the override {_shown(override)} is not YAML; quote it.")
            value = _UNREAD
        found.append((key.split("."), value))
    return found, problems


def dump(config: JobConfig) -> str:
    """Return the configuration as YAML with every key; :func:`load_job` reads it back."""
    return to_yaml(config.to_dict())


def to_yaml(mapping: Mapping[str, Any]) -> str:
    """Return sections of a configuration as YAML."""
    text = yaml.dump(dict(mapping), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return re.sub(r"(?m)^(?=\w+:$)", "\n", text)


def resolve(config: _J, world_size: int | None = None) -> _J:
    """Return the configuration with values for the keys that follow from others.

    Args:
        config: The configuration.
        world_size: Number of processes; without it, keys that depend on it stay as they are.
    """
    return config.resolved(world_size)


def _parse(
    text: str, source: str, lines: Lines, problems: list[str], twice: list[Path_], path: Path_ = ()
) -> Any:
    """Return the YAML document as plain data; collect the line of each key, and duplicate keys."""
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        code = f"U+{ord(text[error.position]):04X}"
        raise ConfigError(
            [f"{source} is not YAML: line {line} has the control character {code}; remove it."]
        ) from None
    try:
        node = loader.get_single_node()
        return None if node is None else _plain(loader, node, path, lines, problems, twice)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError([f"{source} is not YAML: {error.problem or error.context}{where}."]) from None
    except _NOT_YAML as error:
        raise ConfigError([f"{source} is not YAML: {' '.join(str(error).split())}."]) from None
    finally:
        loader.dispose()


def _plain(
    loader: _Loader, node: yaml.Node, path: Path_, lines: Lines, problems: list[str], twice: list[Path_]
) -> Any:
    if len(path) > _DEEPEST:
        raise yaml.YAMLError("it is nested too deeply")
    loader.values += 1
    if loader.values > _MOST_VALUES:
        raise yaml.YAMLError(f"it has more than {_MOST_VALUES:,} values, as aliases of aliases make them")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, item, (*path, i), lines, problems, twice) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node, deep=True)
    times = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
    for key, count in times.items():
        if count > 1 and key != "<<":
            problems.append(f"{_name((*path, key))} is given {count} times; keep one.")
            twice.append((*path, key))
    loader.flatten_mapping(node)
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
        lines[(*path, key)] = key_node.start_mark.line + 1
        result[key] = _plain(loader, value_node, (*path, key), lines, problems, twice)
    return result


def _build(
    mapping: dict[str, Any],
    overrides: Sequence[str],
    lines: Lines,
    problems: list[str],
    unfit: Sequence[Path_],
    source: str,
    schema: type[_J] | None,
) -> _J:
    unfit = [*unfit]
    parsed, wrong = _parse_overrides(overrides, unfit)
    problems = [*problems, *wrong]
    for keys, value in parsed:
        mapping = _with(mapping, keys, value, (), problems, unfit)
        lines = {path: line for path, line in lines.items() if path[: len(keys)] != tuple(keys)}
    converter = _Converter(lines, problems, unfit, schema)
    config = converter.job(mapping)
    if problems or config is None:
        if config is not None:
            _hide(config, unfit)
        # An override without a key may be meant for any key, so no value is certain.
        raise ConfigError(problems, source=source, rest=config if len(parsed) == len(overrides) else None)
    return typing.cast("_J", config)


def _hide(config: JobConfig, unfit: Sequence[Path_]) -> None:
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
    path: Path_,
    problems: list[str],
    unfit: list[Path_],
) -> dict[str, Any]:
    """Return a copy of a mapping with a value at the keys."""
    first, *rest = keys
    if not rest:
        return {**mapping, first: value}
    inner = mapping.get(first)
    if inner is None:
        inner = {}
    if inner is _UNREAD:
        return mapping
    if not isinstance(inner, dict):
        problems.append(f"{_name((*path, first))} has no keys below it, so {'.'.join(keys)} cannot be set.")
        unfit.append((*path, first))
        return mapping
    return {**mapping, first: _with(inner, rest, value, (*path, first), problems, unfit)}


def _name(path: Path_) -> str:
    """Return the usual notation of a key: ``data.blend[0].weight``."""
    name = ""
    for part in path:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


class _Converter:
    """Converts plain data to the schema's types, and collects what does not fit."""

    def __init__(
        self, lines: Lines, problems: list[str], unfit: list[Path_], schema: type[JobConfig] | None
    ) -> None:
        self._schema: type[JobConfig] = schema or Config
        self._is_open = schema is None
        self._lines = lines
        self._problems = problems
        self._unfit = unfit

    def job(self, value: Mapping[str, Any]) -> JobConfig | None:
        """Return a job's configuration by its workload's schema; None if that is another or unknown."""
        own = next(field.default for field in dataclasses.fields(self._schema) if field.name == "workload")
        named = value.get("workload", own)
        if named is not _UNREAD and self._choice(
            [*WORKLOADS] if self._is_open else [own], named, ("workload",)
        ):
            self._schema = WORKLOADS[named].schema if self._is_open else self._schema
            return self.section(self._schema, value, ())
        return None

    def section(self, cls: type[_T], value: Any, path: Path_) -> _T | None:
        """Return a dataclass from a mapping, with None for what does not fit; None if it is not a mapping."""
        if value is None and path:
            value = {}
        if not isinstance(value, Mapping):
            self._note(path, f"must hold keys and values, not {_shown(value)}")
            return None
        hints = typing.get_type_hints(cls, include_extras=True)
        given: dict[str, Any] = {}
        for key, item in value.items():
            if key not in hints:
                self._unknown(path, str(key), hints)
            else:
                given[key] = self.value(hints[key], item, (*path, key))
        required = [
            field.name
            for field in dataclasses.fields(cls)  # type: ignore[arg-type]
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        ]
        for key in required:
            if key not in value:
                self._note((*path, key), "is missing")
                given[key] = None
        return cls(**given)

    def value(self, hint: Any, value: Any, path: Path_) -> Any:
        """Return a value converted to its type; collect a problem if it does not fit."""
        if value is _UNREAD:
            self._unfit.append(path)
            return None
        origin = typing.get_origin(hint)
        if origin is typing.Annotated:
            inner, bounds = typing.get_args(hint)[:2]
            if isinstance(bounds, OfFile):
                text = self._scalar(inner, value, path)
                return None if text is None else at_home(text)
            if isinstance(bounds, ByPartition):
                return self._texts(
                    value if value is None or isinstance(value, Mapping) else {"": value}, path
                )
            return self._bounded(inner, bounds, value, path)
        if origin in (typing.Union, types.UnionType):
            (inner,) = (part for part in typing.get_args(hint) if part is not type(None))
            return None if value is None else self.value(inner, value, path)
        if origin is Literal:
            return self._choice(typing.get_args(hint), value, path)
        if origin is tuple:
            return self._list(typing.get_args(hint)[0], value, path)
        if origin is dict:
            return self._texts(value, path)
        if dataclasses.is_dataclass(hint):
            if hint is Blend and isinstance(value, str):
                value = {"prefix": value}
            return self.section(typing.cast("type[Any]", hint), value, path)
        return self._scalar(hint, value, path)

    def _scalar(self, hint: Any, value: Any, path: Path_) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            if hint is int:
                return int(value)
            if hint is float:
                return self._scalar(hint, _float(value), path)
        if isinstance(value, hint) and (hint is not int or not isinstance(value, bool)):
            if hint is float and not -float("inf") < value < float("inf"):
                return self._note(path, f"must be a finite number, not {value}")
            return value
        if value is None:
            return self._note(path, f"has no value; give {_WORDS[hint]}, or leave the key out")
        remark = ""
        if hint is str and not isinstance(value, list | dict):
            remark = " (put it in quotes)"
        elif isinstance(value, str) and re.fullmatch(r"[-+]?0[0-9_]+", value):
            remark = " (leave the leading zero out; to YAML it would mean octal)"
        return self._note(path, f"must be {_WORDS[hint]}, not {_shown(value)}{remark}")

    def _bounded(self, inner: Any, bounds: Bounds, value: Any, path: Path_) -> Any:
        number = self._scalar(inner, value, path)
        if number is not None and not bounds.hold(number):
            return self._note(path, f"is {_shown(value)}; it must be {bounds}")
        return number

    def _choice(self, choices: Sequence[Any], value: Any, path: Path_) -> Any:
        if value in choices:
            return value
        return self._note(path, f"is {_shown(value)}; it must be {_or(choices)}{_nearest(value, choices)}")

    def _list(self, inner: Any, value: Any, path: Path_) -> tuple[Any, ...]:
        if value is None:
            return ()
        if isinstance(value, str | dict):
            value = [value]
        if not isinstance(value, list | tuple):
            self._note(path, f"must be a list, not {_shown(value)}")
            return ()
        if inner is Blend and (ours := _from_megatron(value)):
            self._note(path, f"has weights and prefixes in Megatron's order; write {ours}")
            return ()
        return tuple(self.value(inner, item, (*path, index)) for index, item in enumerate(value))

    def _texts(self, value: Any, path: Path_) -> dict[str, str]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self._note(path, f"must hold names and texts, not {_shown(value)}")
            return {}
        # 1 clearly means "1", but `on` and 1.10 are ambiguous, so these need quotes.
        plain = {key: str(item) if type(item) is int else item for key, item in value.items()}
        return {str(key): self.value(str, item, (*path, str(key))) for key, item in plain.items()}

    def _unknown(self, path: Path_, key: str, known: Mapping[str, Any]) -> None:
        # With a missing word, as in heads for attention_heads, the spelling is no close match.
        words = set(key.split("_"))
        near = difflib.get_close_matches(key, known, n=1) or [
            name for name in known if words <= set(name.split("_"))
        ]
        similar = [(*path, name) for name in near]
        similar = similar or [found for found in _all_keys(self._schema) if found[-1] == key]
        # The values of the keys that were probably meant are unknown.
        self._unfit += similar
        names = [_name(found) for found in similar]
        names = names if near else sorted(names)
        hint = f"; did you mean {_or(names)}?" if names else f"; known are {', '.join(known)}."
        self._problems.append(f"{_name((*path, key))} is not a key{self._line((*path, key))}{hint}")

    def _note(self, path: Path_, what: str) -> None:
        self._unfit.append(path)
        self._problems.append(f"{_name(path)}{self._line(path)} {what}.")

    def _line(self, path: Path_) -> str:
        return f" (line {self._lines[path]})" if path in self._lines else ""


def _all_keys(cls: type[Any], path: Path_ = ()) -> list[Path_]:
    """Return the path of every key of a dataclass and its sections."""
    found: list[Path_] = []
    for key, hint in typing.get_type_hints(cls).items():
        found.append((*path, key))
        if dataclasses.is_dataclass(hint):
            found += _all_keys(typing.cast("type[Any]", hint), (*path, key))
    return found


def _from_megatron(items: Sequence[Any]) -> str | None:
    """Return a blend in our notation, given Megatron's, ``0.3 a 0.7 b``; None if it is not in Megatron's."""
    words = str(items[0]).split() if len(items) == 1 else []
    # A single pair in a text may be a path with a space.
    if len(words) > 2:
        items = [float(word) if _EXPONENT.match(word + "e0") else word for word in words]
    pairs = list(zip(items[::2], items[1::2], strict=False))
    if not pairs or len(items) % 2:
        return None
    if not all(isinstance(weight, int | float) and isinstance(prefix, str) for weight, prefix in pairs):
        return None
    ours = [f"{{prefix: {prefix}, weight: {weight}}}" for weight, prefix in pairs]
    return f"[{', '.join(ours[:4])}{', …' if len(ours) > 4 else ''}]"


def _float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf")


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]
    if isinstance(value, _Written):
        return value.text[:60]
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _or(choices: Sequence[Any]) -> str:
    *first, last = [str(choice) for choice in choices]
    return f"{', '.join(first)} or {last}" if first else last


def _nearest(value: Any, choices: Sequence[Any]) -> str:
    near = difflib.get_close_matches(str(value).lower(), [str(choice) for choice in choices], 1, 0.8)
    return f" (perhaps {near[0]})" if near else ""
