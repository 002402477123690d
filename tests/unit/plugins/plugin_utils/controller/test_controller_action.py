"""The base class of actions that decide on the controller."""

from __future__ import annotations

from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision


class Nothing(Decision):
    """Decides nothing."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {}

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return nothing."""
        return {}


@pytest.mark.parametrize(("planned", "notices"), [({}, 1), ({"preflight_plan": {}}, 0)])
def test_a_role_that_is_used_alone_names_former_variables(planned: dict[str, Any], notices: int) -> None:
    task = MagicMock(args={}, async_val=0, check_mode=False, until=None, retries=None)
    action = Nothing(task, MagicMock(), MagicMock(), None, None, None)
    action._display = MagicMock()
    action.run(task_vars={"verify_patience": 5.0, **planned})
    warned = [call.args[0] for call in action._display.warning.call_args_list]
    assert len(warned) == notices
    assert all("verify_patience is called verify_timeout now" in sentence for sentence in warned)
