"""Every role keeps the form that DESIGN.md gives it: specification, defaults, tags, README."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES = sorted(path for path in (Path(__file__).parents[2] / "roles").iterdir() if path.is_dir())
KEYWORDS = {"block", "rescue", "always"}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def options(role: Path) -> dict[str, dict[str, Any]]:
    spec: dict[str, dict[str, Any]] = load(role / "meta" / "argument_specs.yml")["argument_specs"]["main"][
        "options"
    ]
    return spec


def tasks(role: Path) -> list[dict[str, Any]]:
    """All tasks of a role, those inside blocks included."""
    found: list[dict[str, Any]] = []

    def walk(items: list[dict[str, Any]]) -> None:
        for item in items:
            found.append(item)
            for keyword in KEYWORDS & item.keys():
                walk(item[keyword])

    for path in sorted((role / "tasks").rglob("*.yml")):
        walk(load(path) or [])
    return found


@pytest.fixture(params=ROLES, ids=lambda role: role.name)
def role(request: pytest.FixtureRequest) -> Path:
    path = request.param
    assert isinstance(path, Path)
    return path


def test_an_option_without_default_is_required_or_named_optional(role: Path) -> None:
    for name, option in options(role).items():
        assert "default" in option or "required" in option, name


def test_every_option_is_described_and_prefixed(role: Path) -> None:
    for name, option in options(role).items():
        assert option.get("description"), f"{name} has no description"
        assert option.get("type"), f"{name} has no type"
        own = name.startswith(f"{role.name}_")
        cluster_wide = role.name == "preflight" and (name.startswith("rdm_") or name == "my_ip")
        assert own or cluster_wide, f"{name} lacks the prefix {role.name}_"


def test_present_and_absent_are_the_states(role: Path) -> None:
    if role.name in {"preflight", "verify"}:  # they change nothing, so there is nothing to remove
        return
    state = options(role)[f"{role.name}_state"]
    assert state["choices"] == ["present", "absent"]
    assert state["default"] == "present"


def test_tags_are_named_after_the_role_and_its_part(role: Path) -> None:
    allowed = {f"{role.name}_{part}" for part in ("install", "configure", "run")}
    found = {tag for task in tasks(role) for tag in task.get("tags", [])}
    assert found <= allowed
    assert found or role.name == "preflight"  # which always runs


def test_no_shell_and_no_silenced_failures(role: Path) -> None:
    for task in tasks(role):
        name = task.get("name")
        assert "ansible.builtin.shell" not in task, name
        assert not task.get("ignore_errors"), name
        assert task.get("failed_when") is not False, name


def test_the_readme_names_the_role_and_where_its_variables_are(role: Path) -> None:
    text = (role / "README.md").read_text(encoding="utf-8")
    assert role.name in text.splitlines()[0]
    assert "argument_specs.yml" in text
