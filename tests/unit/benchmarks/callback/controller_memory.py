"""Record what Ansible's main process keeps of each node, for a test."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: controller_memory
type: aggregate
short_description: Record what Ansible's main process keeps of each node
description: A line of JSON for each result, and one for what was registered.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """The callback: writes into the file that the environment names."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "controller_memory"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Remember where the variables are."""
        self._variables = play.get_variable_manager()

    def v2_runner_on_ok(self, result: Any) -> None:
        """Record the sizes of a result and its task."""
        arguments = result.task_fields["args"]
        size = len(pickle.dumps((result.task_fields, result.result)))
        if not result.task.run_once:
            self._write(task=result.task.get_name(), result=size, arguments=json.loads(json.dumps(arguments)))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Record the size of what the last node alone has registered."""
        facts = self._variables._nonpersistent_fact_cache[max(stats.processed)]
        once = {name for name, value in facts.items() if self._is_shared(name, value)}
        self._write(registered=len(pickle.dumps({k: v for k, v in facts.items() if k not in once})))

    def _is_shared(self, name: str, value: Any) -> bool:
        """Whether hosts share a registered value."""
        others = self._variables._nonpersistent_fact_cache.values()
        return sum(facts.get(name) is value for facts in others) > 1

    def _write(self, **line: Any) -> None:
        with Path(os.environ["CONTROLLER_MEMORY"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
