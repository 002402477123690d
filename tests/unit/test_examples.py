"""What the documentation shows is what the code does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rdm_provision import Cluster

ROOT = Path(__file__).parents[2]
EXAMPLES = [ROOT / "inventory" / name for name in ("rocm-sriov", "cuda-sriov", "no-rdma", "mdx")]


@pytest.mark.parametrize("inventory", EXAMPLES, ids=lambda path: path.name)
def test_the_example_inventories_are_sound(inventory: Path) -> None:
    plan = Cluster.load(inventory).plan()
    assert plan.nodes
    assert {node.note for node in plan.nodes} == {"pinned" if inventory.name == "mdx" else "new"}


def test_the_list_of_variables_is_up_to_date() -> None:
    source = importlib.util.spec_from_file_location(
        "generate_variables", ROOT / "docs" / "generate_variables.py"
    )
    assert source is not None
    assert source.loader is not None
    module = importlib.util.module_from_spec(source)
    source.loader.exec_module(module)
    written = (ROOT / "docs" / "variables.md").read_text(encoding="utf-8")
    assert written == module.page(), "run make docs"
