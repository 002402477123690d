# SPDX-License-Identifier: GPL-3.0-or-later
"""Change a job's YAML, keeping its comments, order and line endings."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import yaml

from rdm_core.atomic_file import replacing
from rdm_core.config.read import load_text
from rdm_core.errors import ConfigError


def with_values(text: str, overrides: Sequence[str], source: str = "the configuration") -> str:
    """Return a job's YAML with other values.

    Args:
        text: YAML.
        overrides: ``key=value`` or ``section.key=value``, as on the command line.
        source: Its name in messages.

    Raises:
        ConfigError: The overrides do not fit, or the edited text would have another meaning, for example
            because the old value is shared through an anchor.
    """
    expected = load_text(text, overrides, source)
    edited = text
    try:
        for override in overrides:
            key, _, value = override.partition("=")
            edited = _with_value(edited, key.split("."), value)
        is_right = load_text(edited, (), source) == expected
    except (yaml.YAMLError, ConfigError):
        is_right = False
    if not is_right:
        raise ConfigError(
            [f"{source} cannot be changed without rewriting it; set by hand: {', '.join(overrides)}."]
        )
    return edited


def write(path: Path, overrides: Sequence[str]) -> None:
    """Change values in a job's file. On an error, the file is unchanged.

    Raises:
        ConfigError: As for :func:`with_values`, or the file cannot be written.
    """
    # Keep a symbolic link, and replace its target.
    target = Path(os.path.realpath(path))
    try:
        with target.open(encoding="utf-8", newline="") as file:
            text = file.read()
        edited = with_values(text, overrides, str(path))
        with replacing(target, durable=True) as successor:
            os.fchmod(successor.fileno(), stat.S_IMODE(target.stat().st_mode))
            successor.write(edited.encode())
    except OSError as error:
        raise ConfigError([f"{path} cannot be written: {error.strerror}."]) from None


def _with_value(text: str, keys: Sequence[str], value: str) -> str:
    document = yaml.compose(text, Loader=yaml.SafeLoader)
    assert document is not None
    node = document
    for depth, key in enumerate(keys):
        if not isinstance(node, yaml.MappingNode):
            # A section without keys: `parallel:`.
            return _put(text, node.end_mark.index, _lines(text, keys[depth:], value, 2 * depth))
        below = next((inner for name, inner in node.value if name.value == key), None)
        if below is None:
            return _added(text, node, keys[depth:], value)
        node = below
    start, end = node.start_mark.index, node.end_mark.index
    return f"{text[:start]}{value if start < end else f' {value}'}{text[end:]}"


def _added(text: str, mapping: yaml.MappingNode, keys: Sequence[str], value: str) -> str:
    """Return the text with another key at the end of a mapping."""
    if mapping.flow_style:
        inner = "".join(f"{{{key}: " for key in keys[1:])
        comma = ", " if mapping.value else ""
        end = mapping.value[-1][1].end_mark.index if mapping.value else mapping.end_mark.index - 1
        return f"{text[:end]}{comma}{keys[0]}: {inner}{value}{'}' * len(keys[1:])}{text[end:]}"
    return _put(text, _end(mapping), _lines(text, keys, value, mapping.start_mark.column))


def _end(node: yaml.Node) -> int:
    """Return where a block ends, without comments after it."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style:
        node = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
    return node.end_mark.index


def _lines(text: str, keys: Sequence[str], value: str, column: int) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    *sections, last = keys
    lines = [f"{' ' * (column + 2 * depth)}{key}:" for depth, key in enumerate(sections)]
    return newline.join([*lines, f"{' ' * (column + 2 * len(sections))}{last}: {value}", ""])


def _put(text: str, position: int, lines: str) -> str:
    """Return the text with new lines below the line of a position."""
    if position and text[position - 1] == "\n":
        return text[:position] + lines + text[position:]
    end = text.find("\n", position)
    if end < 0:
        return f"{text}\n{lines}"
    return text[: end + 1] + lines + text[end + 1 :]
