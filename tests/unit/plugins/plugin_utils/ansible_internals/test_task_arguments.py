"""A task's arguments are dropped when it has ended, but not while it may run again."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.playbook.task import Task
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.task_arguments import (
    drop_arguments,
)

ARGUMENTS = {"msg": "all nodes of the cluster"}


@pytest.mark.parametrize(
    ("again", "left"), [({}, {}), ({"until": "done"}, ARGUMENTS), ({"retries": 2}, ARGUMENTS)]
)
def test_a_task_that_may_run_again_keeps_them(again: dict[str, Any], left: dict[str, Any]) -> None:
    task = Task.load({"action": "ansible.builtin.debug", "args": ARGUMENTS, **again})
    drop_arguments(task)
    assert task.args == left
