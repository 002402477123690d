# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables that a playbook adds to those of its hosts, which `hostvars` do not have."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ansible import __version__
from ansible.errors import AnsibleError
from ansible.playbook.block import Block
from ansible.playbook.role_include import IncludeRole
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem

COLLECTION = "rdm.provision"


def variables_in_play(task: Any, task_vars: Mapping[str, Any]) -> Callable[[str], dict[str, Any]]:
    """Return a function from a host to its unevaluated variables, with the play's `vars` and `vars_files`.

    Ansible decides their precedence.

    Raises:
        AnsibleError: this ansible-core lacks the private parts that are read here.
    """
    hostvars = task_vars["hostvars"]
    play = task.get_play()
    if not play.vars and not play.get_vars_files():
        return hostvars.raw_get
    # The defaults of its roles are not set by the user.
    bare = play.copy()
    bare.roles = []
    with _private_parts():
        manager, inventory = hostvars._variable_manager, hostvars._inventory
    return lambda name: manager.get_vars(play=bare, host=inventory.get_host(name), include_hostvars=False)


def unseen(
    task: Any,
    task_vars: Mapping[str, Any],
    seen: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, Any],
    names: set[str],
) -> list[Problem]:
    """Return a problem for each variable set for a single role or block, where the plan does not see it.

    Args:
        task: the task that plans.
        task_vars: its variables.
        seen: host -> its variables as the plan sees them.
        defaults: the defaults of the collection's roles.
        names: the variables that the plan depends on.

    Raises:
        AnsibleError: this ansible-core lacks the private parts that are read here.
    """
    own = seen.get(str(task_vars["inventory_hostname"]))
    found: set[str] = set()
    if own is not None:
        here = names.intersection(task_vars)
        found = {name for name in here if _differ(task_vars[name], own.get(name, defaults.get(name)))}
    with _private_parts():
        given = list(_given(task.get_play()))
    for variables in given:
        for name in names.intersection(variables):
            if any(name not in host or _differ(variables[name], host[name]) for host in seen.values()):
                found.add(name)
    reason = "is given to a role or a block of the playbook, where the plan does not see it"
    hint = "set it in the inventory, or in vars or vars_files of the play"
    return [Problem(None, name, reason, hint) for name in sorted(found)]


@contextlib.contextmanager
def _private_parts() -> Iterator[None]:
    """Refuse an ansible-core that lacks the private parts read in the block."""
    try:
        yield
    except AttributeError as error:
        raise AnsibleError(
            f"the variables of a play cannot be read with ansible-core {__version__}: use a release that pip "
            "installs with rdm-provision"
        ) from error


def as_written(value: Any) -> str:
    """Return a variable's value as text; encrypted values in it stay encrypted.

    Raises:
        TypeError: the keys of a dictionary cannot be sorted.
    """
    # A value that JSON cannot express is an encrypted one, or another object of Ansible's.
    return json.dumps(value, sort_keys=True, default=_written)


def _differ(one: Any, other: Any) -> bool:
    # Encrypted values are compared by their ciphertext: decrypting them is not needed.
    try:
        return as_written(one) != as_written(other)
    except TypeError:
        return False


def _given(play: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the variables that a play sets for the collection's roles, as far as known before they run."""
    for role in play.roles:
        if role._role_collection == COLLECTION:
            yield {**role._role_params, **role.vars}
    for block in (*play.pre_tasks, *play.tasks, *play.post_tasks):
        yield from _given_in(block)


def _given_in(block: Any) -> Iterator[Mapping[str, Any]]:
    for item in (*block.block, *block.rescue, *block.always):
        if isinstance(item, Block) and item._role is None:
            yield from _given_in(item)
        elif isinstance(item, Block):
            ours = item._role._role_collection == COLLECTION
            yield item.get_vars() if ours else {}
        elif isinstance(item, IncludeRole):
            yield item.get_vars() if str(item._role_name).startswith(f"{COLLECTION}.") else {}


def _written(value: Any) -> str:
    ciphertext = getattr(value, "_ciphertext", None)
    return str(value if ciphertext is None else ciphertext)
