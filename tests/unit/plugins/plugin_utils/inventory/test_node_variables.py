"""One node's variables are evaluated one by one."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables

VALUE = "{{ x }}"
"""Ansible shows the file and the line of it."""


def undefined(name: str) -> Any:
    raise AnsibleError("'x' is undefined", obj=VALUE)


def test_a_variable_that_cannot_be_evaluated_is_named_with_its_place() -> None:
    variables = NodeVariables({"container_env"}, undefined)
    with pytest.raises(
        AnsibleError, match=r"^container_env cannot be evaluated: 'x' is undefined$"
    ) as caught:
        variables.value("container_env")
    assert caught.value.obj is VALUE


def test_an_early_reader_takes_it_as_not_known_yet() -> None:
    variables = NodeVariables({"container_env"}, undefined, early=True)
    assert variables.value("container_env") is None
    assert variables.missed
