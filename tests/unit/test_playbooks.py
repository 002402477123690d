"""What every play that changes or reads nodes has in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
ENGINE = "{{ {'DOCKER_HOST': 'unix://' ~ rdm_docker_socket} if rdm_docker_socket | default('') else {} }}"


def plays() -> list[tuple[str, dict[str, Any]]]:
    """Return the plays with the names of their files."""
    return [
        (path.name, play) for path in PLAYBOOKS.rglob("*.yml") for play in yaml.safe_load(path.read_text())
    ]


def test_whoever_works_on_nodes_tells_modules_where_the_engine_is() -> None:
    found = [(name, play["name"], play.get("environment")) for name, play in plays() if "become" in play]
    assert len(found) > 20
    assert [one for one in found if one[2] != ENGINE] == []
