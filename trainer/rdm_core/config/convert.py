# SPDX-License-Identifier: GPL-3.0-or-later
"""Plain data → the schema's dataclasses, with a sentence on each value that does not fit."""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from rdm_core.bounds import Bounds
from rdm_core.config.job import ByPartition, JobConfig, OfFile, at_home
from rdm_core.config.schema import Blend, Config
from rdm_core.config.workloads import WORKLOADS
from rdm_core.config.yaml_text import EXPONENT, KeyPath, Lines, key_name, shown

_T = TypeVar("_T")
UNREAD: Any = object()
"""The value of a key whose override cannot be read."""
_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


class Converter:
    """Converts plain data to the schema's types, and collects what does not fit.

    Args:
        lines: The line of each key, for messages.
        problems: Takes a sentence on each problem.
        unfit: Takes the keys whose values are unknown.
        schema: The workload's schema; without one, the key ``workload`` says which.
    """

    def __init__(
        self, lines: Lines, problems: list[str], unfit: list[KeyPath], schema: type[JobConfig] | None
    ) -> None:
        self._schema: type[JobConfig] = schema or Config
        self._is_open = schema is None
        self._lines = lines
        self._problems = problems
        self._unfit = unfit

    def job(self, value: Mapping[str, Any]) -> JobConfig | None:
        """Return a job's configuration by its workload's schema; None if that is another or unknown."""
        own = self._workload
        # Only a training has this section.
        named = value.get("workload", "train" if "parallel" in value else own)
        if not self._is_open and named != own and named in ("train", "finetune"):
            remark = f"rdm-trainer {named} runs that one"
            self._note(("workload",), f"is {shown(named)}; it must be {own} ({remark})")
        elif named is not UNREAD and self._choice(
            [*WORKLOADS] if self._is_open else [own], named, ("workload",)
        ):
            self._schema = WORKLOADS[named].schema if self._is_open else self._schema
            return self.section(self._schema, value, ())
        return None

    @property
    def _workload(self) -> Any:
        return next(field.default for field in dataclasses.fields(self._schema) if field.name == "workload")

    def section(self, cls: type[_T], value: Any, path: KeyPath) -> _T | None:
        """Return a dataclass from a mapping, with None for what does not fit; None if it is not a mapping."""
        if value is None and path:
            value = {}
        if not isinstance(value, Mapping):
            self._note(path, f"must hold keys and values, not {shown(value)}")
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

    def value(self, hint: Any, value: Any, path: KeyPath) -> Any:
        """Return a value converted to its type; collect a problem if it does not fit."""
        if value is UNREAD:
            self._unfit.append(path)
            return None
        origin = typing.get_origin(hint)
        if origin is typing.Annotated:
            inner, bounds = typing.get_args(hint)[:2]
            if isinstance(bounds, OfFile):
                text = self._scalar(inner, value, path)
                if text is not None and not text.strip():
                    return self._note(path, f"must be a path, not {shown(value)}")
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

    def _scalar(self, hint: Any, value: Any, path: KeyPath) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            if hint is int:
                return int(value)
            if hint is float:
                return self._scalar(hint, _float(value), path)
        if isinstance(value, hint) and (hint is not int or not isinstance(value, bool)):
            if hint is float and not -float("inf") < value < float("inf"):
                return self._note(path, f"must be a finite number, not {value}")
            if hint is str and "\0" in value:
                return self._note(path, f"must be text without a NUL character, not {shown(value)}")
            return value
        if value is None:
            return self._note(path, f"has no value; give {_WORDS[hint]}, or leave the key out")
        remark = ""
        if hint is str and not isinstance(value, list | dict):
            remark = " (put it in quotes)"
        elif isinstance(value, str) and re.fullmatch(r"[-+]?0[0-9_]+", value):
            remark = " (leave the leading zero out; to YAML it would mean octal)"
        return self._note(path, f"must be {_WORDS[hint]}, not {shown(value)}{remark}")

    def _bounded(self, inner: Any, bounds: Bounds, value: Any, path: KeyPath) -> Any:
        number = self._scalar(inner, value, path)
        if number is not None and not bounds.hold(number):
            return self._note(path, f"is {shown(value)}; it must be {bounds}")
        return number

    def _choice(self, choices: Sequence[Any], value: Any, path: KeyPath) -> Any:
        if value in choices:
            return value
        return self._note(path, f"is {shown(value)}; it must be {_or(choices)}{_nearest(value, choices)}")

    def _list(self, inner: Any, value: Any, path: KeyPath) -> tuple[Any, ...]:
        if value is None:
            return ()
        if isinstance(value, str | dict):
            value = [value]
        if not isinstance(value, list | tuple):
            self._note(path, f"must be a list, not {shown(value)}")
            return ()
        if inner is Blend and (ours := _from_megatron(value)):
            self._note(path, f"has weights and prefixes in Megatron's order; write {ours}")
            return ()
        return tuple(self.value(inner, item, (*path, index)) for index, item in enumerate(value))

    def _texts(self, value: Any, path: KeyPath) -> dict[str, str]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self._note(path, f"must hold names and texts, not {shown(value)}")
            return {}
        # 1 clearly means "1", but `on` and 1.10 are ambiguous, so these need quotes.
        plain = {key: str(item) if type(item) is int else item for key, item in value.items()}
        # One text for all is that of the name "".
        paths = {key: (*path, str(key)) if key != "" else path for key in plain}
        return {str(key): self.value(str, item, paths[key]) for key, item in plain.items()}

    def _unknown(self, path: KeyPath, key: str, known: Mapping[str, Any]) -> None:
        # With a missing word, as in heads for attention_heads, the spelling is no close match.
        words = set(key.split("_"))
        near = difflib.get_close_matches(key, known, n=1) or [
            name for name in known if words <= set(name.split("_"))
        ]
        similar = [(*path, name) for name in near]
        similar = similar or [found for found in _all_keys(self._schema) if found[-1] == key]
        # The values of the keys that were probably meant are unknown.
        self._unfit += similar
        names = [key_name(found) for found in similar]
        names = names if near else sorted(names)
        hint = f"; did you mean {_or(names)}?" if names else f"; known are {', '.join(known)}."
        if others := [name for name, one in WORKLOADS.items() if (*path, key) in _all_keys(one.schema)]:
            hint = f" of `workload: {self._workload}`, but of {_or([f'`workload: {one}`' for one in others])}"
            if not self._is_open and "command" not in others:
                hint += f", which rdm-trainer {_or(others)} runs"
            hint += f"; did you mean {_or(names)}?" if names else "."
        self._problems.append(f"{key_name((*path, key))} is not a key{self._line((*path, key))}{hint}")

    def _note(self, path: KeyPath, what: str) -> None:
        self._unfit.append(path)
        self._problems.append(f"{key_name(path)}{self._line(path)} {what}.")

    def _line(self, path: KeyPath) -> str:
        return f" (line {self._lines[path]})" if path in self._lines else ""


def _all_keys(cls: type[Any], path: KeyPath = ()) -> list[KeyPath]:
    """Return the path of every key of a dataclass and its sections."""
    found: list[KeyPath] = []
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
        items = [float(word) if EXPONENT.match(word + "e0") else word for word in words]
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


def _or(choices: Sequence[Any]) -> str:
    *first, last = [str(choice) for choice in choices]
    return f"{', '.join(first)} or {last}" if first else last


def _nearest(value: Any, choices: Sequence[Any]) -> str:
    near = difflib.get_close_matches(str(value).lower(), [str(choice) for choice in choices], 1, 0.8)
    return f" (perhaps {near[0]})" if near else ""
