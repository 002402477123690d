# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration of a job as flat text, with secrets hidden, and differences between several."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rdm_log.scan import regular

HIDDEN = "(not shown)"

_SECRET = re.compile(r"(?i)(?:^|[._-])(?:api[_-]?key|secret|passw(?:or)?d|credentials?|access[_-]?token)s?$")
_SECRET_ARGUMENT = re.compile(r"(--(?:\w+[-_])*(?:key|token|secret|passw(?:or)?d|credential)s?(?:=|, ))[^,]*")
_PROGRAM = "launcher.program"
_SECTIONS_OF_SECRETS = ("launcher.env.",)
"""Environment variables often hold keys, so only their names are shown."""


def read(path: Path) -> dict[str, str]:
    """Return the configuration in a job's ``resolved.yaml``, flat; empty if it cannot be read."""
    import yaml

    try:
        found = yaml.safe_load(regular(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return flat(found) if isinstance(found, dict) else {}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested values as text by dotted keys, without keys that are not set.

    >>> flat({"model": {"layers": 2, "kind": None}})
    {'model.layers': '2'}
    """
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value:
            found[f"{prefix}{key}"] = ", ".join(map(_text, value))
        elif value not in (None, []):
            found[f"{prefix}{key}"] = _text(value)
    return found


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_text(one)}" for key, one in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """Return a configuration with passwords and the values of environment variables hidden.

    >>> without_secrets({"launcher.program": "train.py, --wandb-key, 1a2b, --tokenizer-type, GPT2"})
    {'launcher.program': 'train.py, --wandb-key, (not shown), --tokenizer-type, GPT2'}
    """
    shown = {
        key: HIDDEN if _SECRET.search(key) or key.startswith(_SECTIONS_OF_SECRETS) else value
        for key, value in values.items()
    }
    if _PROGRAM in shown:
        shown[_PROGRAM] = _SECRET_ARGUMENT.sub(rf"\1{HIDDEN}", shown[_PROGRAM])
    return shown


def differences(configurations: Sequence[Mapping[str, str]]) -> dict[str, list[str | None]]:
    """Return the keys whose values differ, with the value in each configuration; None if it is not set."""
    keys = dict.fromkeys(key for values in configurations for key in values)
    found = {key: [values.get(key) for values in configurations] for key in keys}
    return {key: values for key, values in found.items() if len(set(values)) > 1}
