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


def warnings_of(action: type[Decision], arguments: dict[str, Any], variables: dict[str, Any]) -> list[str]:
    """Run an action and return what it warns of."""
    task = MagicMock(args=arguments, async_val=0, check_mode=False, until=None, retries=None)
    run = action(task, MagicMock(), MagicMock(), None, None, None)
    run._display = MagicMock()
    run.run(task_vars=variables)
    return [call.args[0] for call in run._display.warning.call_args_list]


@pytest.mark.parametrize(("planned", "notices"), [({}, 1), ({"preflight_plan": {}}, 0)])
def test_role_used_alone_reports_former_variables(planned: dict[str, Any], notices: int) -> None:
    warned = warnings_of(Nothing, {}, {"verify_patience": 5.0, **planned})
    assert len(warned) == notices
    assert all("verify_patience is called verify_timeout now" in sentence for sentence in warned)


def test_former_name_of_an_option_is_accepted_with_a_notice() -> None:
    class Waits(Nothing):
        """Takes one option, and keeps it."""

        ARGUMENTS: ClassVar[dict[str, Any]] = {"timeout": {"type": "float", "aliases": ["patience"]}}
        taken: ClassVar[list[float]] = []

        def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
            """Keep the option."""
            self.taken.append(options["timeout"])
            return {}

    assert warnings_of(Waits, {"timeout": 3}, {}) == []
    (notice,) = warnings_of(Waits, {"patience": 5}, {})
    assert "patience is called timeout now" in notice
    assert Waits.taken == [3.0, 5.0]
