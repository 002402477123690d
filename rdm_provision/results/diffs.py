"""The diffs that modules return, as text for people, without possible secrets."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

_NO_SECRETS = frozenset({"MY_IP", "MASTER_ADDR"})


def unified_diff(res: Mapping[str, Any]) -> str:
    """Return the changes in a result as one unified diff; empty if there are none.

    Environment variables appear without values, which may be secrets, except the cluster's addresses.
    """
    return "".join(_one_diff(diff) for diff in _diffs(res))


def _diffs(res: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for item in (res, *(r for r in res.get("results") or () if isinstance(r, Mapping))):
        diffs = item.get("diff")
        for diff in diffs if isinstance(diffs, list) else [diffs]:
            if isinstance(diff, Mapping):
                yield diff


def environment_values(res: Mapping[str, Any]) -> Iterator[str]:
    """Yield ``NAME=value`` for each variable in a result's diffs that may be a secret."""
    for diff in _diffs(res):
        for side in (diff.get("before"), diff.get("after")):
            if isinstance(side, Mapping):
                env = _environment(side.get("env"))
                yield from (f"{name}={value}" for name, value in env.items() if name not in _NO_SECRETS)


def _environment(env: Any) -> dict[str, str]:
    """Return an environment, a mapping or a list of ``NAME=value``, as a mapping."""
    if isinstance(env, Mapping):
        return {str(name): str(value) for name, value in env.items()}
    if isinstance(env, (list, tuple)):
        return {name: value for name, _, value in (str(item).partition("=") for item in env)}
    return {}


def _environment_diff(before: Any, after: Any) -> Iterator[str]:
    """Yield a line for each variable that comes, goes or changes, without possible secrets."""
    had, has = _environment(before), _environment(after)
    for name in dict.fromkeys([*had, *has]):
        if had.get(name) == has.get(name):
            continue
        for sign, side in (("-", had), ("+", has)):
            if name in side:
                other = "(another value)" if sign == "+" and name in had else "(hidden)"
                yield f"{sign}env.{name}: {side[name] if name in _NO_SECRETS else other}\n"


def _one_diff(diff: Mapping[str, Any]) -> str:
    if "prepared" in diff:
        return _ensure_newline(str(diff["prepared"]))
    if "before" not in diff and "after" not in diff:
        return ""
    if any(key in diff for key in ("src_binary", "dst_binary", "src_larger", "dst_larger")):
        return ""
    before, after = diff.get("before"), diff.get("after")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        # Settings: only those that differ, one per line.
        had, has = (dict(_flat({k: v for k, v in side.items() if k != "env"})) for side in (before, after))
        differing = [key for key in dict.fromkeys([*had, *has]) if had.get(key) != has.get(key)]
        return "".join(
            f"{sign}{key}: {side[key]}\n"
            for key in differing
            for sign, side in (("-", had), ("+", has))
            if key in side
        ) + "".join(_environment_diff(before.get("env"), after.get("env")))
    name_before = str(diff.get("before_header") or "before")
    name_after = str(diff.get("after_header") or "after")
    return "".join(difflib.unified_diff(_lines(before), _lines(after), name_before, name_after, n=2))


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping) and value:
            yield from _flat(value, name)
        else:
            yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _lines(side: Any) -> list[str]:
    if side is None:
        return []
    text = side if isinstance(side, str) else json.dumps(side, indent=2, sort_keys=True, ensure_ascii=False)
    return _ensure_newline(text).splitlines(keepends=True)


def _ensure_newline(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"
