"""What is verified of an archive that came from other nodes, before the engine gets it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.action.image_archive import ActionModule


@pytest.mark.parametrize(
    ("brought", "digest"),
    [
        ({}, ""),  # its pieces were verified by a list from the controller
        ({"whole": "yes"}, "of the source"),
        ({"sha256": "as listed"}, "as listed"),
    ],
)
def test_what_is_verified_of_an_archive_from_other_nodes(brought: dict[str, str], digest: str) -> None:
    seen: dict[str, Any] = {}
    commands: list[str] = []
    action: Any = ActionModule.__new__(ActionModule)
    action._connection = SimpleNamespace(_shell=SimpleNamespace(remove=lambda path: f"rm {path}"))
    action._low_level_execute_command = commands.append
    action._module = lambda arguments, _variables: seen.update(arguments) or {}
    given = {"copy": "/cache/n.tar", "index": {"sha256": "of the source"}, **brought}
    action._load_brought(given, {"path": "image.tar"}, {})
    assert (seen["copy"], seen["index"]) == ("/cache/n.tar", {"sha256": digest})
    assert commands == ["rm /cache/n.tar && rm /cache/n.tar.have"]
