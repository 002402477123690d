# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML text → plain data with the line of each key, and back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rdm_core.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""The way to a value: keys, and positions in lists."""
Lines = dict[KeyPath, int]
# PyYAML raises ValueError for a date that does not exist, as 2024-99-99, which may be meant as a partition.
_NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
# A larger text is not a configuration, and would take PyYAML minutes.
_MOST_CHARACTERS = 1 << 20
_MOST_VALUES = 100_000
_MOST_MERGED = 1_000
_DEEPEST = 20


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
EXPONENT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+\Z")
"""A number with an exponent, which YAML 1.1 reads as text if it has no point or no sign."""
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), list("-+.0123456789"))
for _cls in (_Loader, _Dumper):
    _cls.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+.0123456789"))


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
    check_length(text, str(path))
    return text


def check_length(text: str, source: str) -> None:
    """Reject a text that is too long for a configuration.

    Raises:
        ConfigError: It is.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(
            [f"{source} has more than {_MOST_CHARACTERS:,} characters, as no configuration has."]
        )


def parse(
    text: str, source: str, lines: Lines, problems: list[str], twice: list[KeyPath], path: KeyPath = ()
) -> Any:
    """Return a YAML document as plain data.

    Args:
        text: The document.
        source: Its name in messages.
        lines: Takes the line of each key.
        problems: Takes a sentence on each duplicate key.
        twice: Takes the duplicate keys.
        path: The key whose value the document is.

    Raises:
        ConfigError: It is not YAML, or larger than a configuration can be.
    """
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
    loader: _Loader, node: yaml.Node, path: KeyPath, lines: Lines, problems: list[str], twice: list[KeyPath]
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
            problems.append(f"{key_name((*path, key))} is given {count} times; keep one.")
            twice.append((*path, key))
    loader.flatten_mapping(node)
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
        lines[(*path, key)] = key_node.start_mark.line + 1
        result[key] = _plain(loader, value_node, (*path, key), lines, problems, twice)
    return result


def to_yaml(mapping: Mapping[str, Any]) -> str:
    """Return sections of a configuration as YAML."""
    text = yaml.dump(dict(mapping), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return re.sub(r"(?m)^(?=\w+:$)", "\n", text)


def key_name(path: KeyPath) -> str:
    """Return the usual notation of a key: ``data.blend[0].weight``."""
    name = ""
    for part in path:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def shown(value: Any) -> str:
    """Return a value as messages show it: as it was written, and shortened."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]
    if isinstance(value, _Written):
        return value.text[:60]
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
