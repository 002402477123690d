"""What a play gives its hosts, where Ansible's private parts are missing; tests of `plan` have the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.play_variables import (
    unseen,
    variables_in_play,
)


def task(**play: Any) -> Any:
    parts = SimpleNamespace(get_vars_files=list, pre_tasks=[], tasks=[], post_tasks=[], roles=[], **play)
    parts.copy = lambda: parts
    return SimpleNamespace(get_play=lambda: parts)


def test_a_play_without_variables_needs_no_private_part() -> None:
    hostvars = SimpleNamespace(raw_get={"n1": {"a": 1}}.get)
    assert variables_in_play(task(vars={}), {"hostvars": hostvars})("n1") == {"a": 1}


def test_an_ansible_without_the_private_parts_is_refused_by_its_version() -> None:
    refused = r"cannot be read with ansible-core \d"
    with pytest.raises(AnsibleError, match=refused):
        variables_in_play(task(vars={"a": 1}), {"hostvars": SimpleNamespace(raw_get=dict)})
    with_a_role = task(vars={})
    with_a_role.get_play().roles = [object()]
    with pytest.raises(AnsibleError, match=refused):
        unseen(with_a_role, {"inventory_hostname": "n1"}, {}, {}, set())
