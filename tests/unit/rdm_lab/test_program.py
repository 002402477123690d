"""What makes a container a lab node: it outlives interfaces that come and go."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.rdm_lab import role_program


@pytest.fixture
def program(tmp_path: Path) -> ModuleType:
    module = role_program.load("rdm-lab")
    module.NET = tmp_path  # type: ignore[attr-defined]
    return module


def test_the_plugins_links_are_no_cables(program: ModuleType, tmp_path: Path) -> None:
    for name in ("ib0", "ib1", "ib10", "ib0v0", "ib1v6", "eth0"):
        (tmp_path / name).mkdir()
    assert {cable.name for cable in program.cables()} == {"ib0", "ib1", "ib10"}


def test_an_interface_that_goes_while_it_is_read_ends_no_node(program: ModuleType, tmp_path: Path) -> None:
    assert program.up(tmp_path / "ib1")
    for flags, is_up in (("0x1002\n", False), ("0x1003\n", True)):
        (tmp_path / "ib0").mkdir(exist_ok=True)
        (tmp_path / "ib0" / "flags").write_text(flags)
        assert program.up(tmp_path / "ib0") is is_up
