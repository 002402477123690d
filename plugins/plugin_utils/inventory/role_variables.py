# SPDX-License-Identifier: GPL-3.0-or-later
"""Validate the roles' variables against their argument_specs, for every node at once.

Ansible validates a role's variables only when the role starts, after other roles have changed things.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory import role_specs

# Docker refuses an invalid name only at creation, after other things have changed.
DOCKER_NAMES = frozenset({"container_name", "network_name", "sriov_container_name"})
# Docker's own network modes; in none of them does a container have MY_IP.
_OF_DOCKER = frozenset({"bridge", "default", "host", "none"})
_SCALARS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
_DOCKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]+")


def variable_problems(node: str, variables: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with the variables of a node; variables of no role are ignored."""
    found = []
    for name, value in variables.items():
        option = role_specs.options().get(name)
        if option is None or value is None:
            continue
        if role_specs.typed(name, value)[1]:  # Ansible's messages name its own classes
            found.append(Problem(node, name, f"has a wrong value{shown(option, value)}", value_hint(option)))
        if name in DOCKER_NAMES and not _DOCKER_NAME.fullmatch(str(value)):
            hint = "use letters, digits, '_', '.' and '-', beginning with a letter or digit"
            found.append(Problem(node, f"{name} {value!r}", "is not a name that Docker takes", hint))
        if name in ("network_name", "container_network") and str(value) in _OF_DOCKER:
            reason = "is a word of Docker's own, and not a network on which a container has MY_IP"
            found.append(Problem(node, f"{name} {value!r}", reason, "choose another name, such as ibnet"))
    return found


def shown(option: Mapping[str, Any], value: Any) -> str:
    """Return a wrong value, to follow a word, unless it may hold secrets, such as build arguments or URLs."""
    if option.get("no_log"):
        return " (not shown here)"
    if isinstance(value, Mapping):
        return ", a dictionary"
    return "" if "dict" in (option.get("type"), option.get("elements")) else f" {value!r}"


def value_hint(option: Mapping[str, Any]) -> str:
    """Return what to give for an option, in the imperative."""
    if option.get("choices"):
        return "choose " + ", ".join(str(choice) or "''" for choice in option["choices"])
    if option.get("type") in _SCALARS:
        return f"give {_SCALARS[option['type']]}"
    elements = f" of {option['elements']}" if option.get("elements") else ""
    return f"give it a {option.get('type', 'str')}{elements} as docs/variables.md says"


def unknown_variables(variables: Iterable[str], known: set[str], prefixes: Sequence[str]) -> list[str]:
    """Return a warning for each unknown variable that looks like one of ours.

    Args:
        variables: names of variables that the user set.
        known: names of known variables.
        prefixes: our prefixes, such as `rdm_` and `network_`. A name with another prefix than `rdm_` is
            reported only if it resembles a known one: it may be the user's own.
    """
    variables = set(variables)
    warnings = []
    for name in sorted({one for one in variables if one.startswith(tuple(prefixes))} - known):
        prefix = max((one for one in prefixes if name.startswith(one)), key=len)
        # Compared without the prefix, which makes any two names similar.
        rests = [one[len(prefix) :] for one in sorted(known) if one.startswith(prefix)]
        near = difflib.get_close_matches(name[len(prefix) :], rests, n=1, cutoff=0.75)
        if near:
            warnings.append(f"The variable {name} means nothing here. Did you mean {prefix}{near[0]}?")
        elif prefix == "rdm_":
            warnings.append(f"The variable {name} means nothing here.")
    # The prefix may be misspelt too, or in capitals as MY_IP is in a shell. Users' own names may resemble
    # ours, so only very close names count.
    for name in sorted(one for one in variables if not one.startswith((*prefixes, "ansible_"))):
        if name not in known and (near := difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.9)):
            warnings.append(f"The variable {name} means nothing here. Did you mean {near[0]}?")
    return warnings
