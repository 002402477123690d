"""What the documentation shows is what the code does."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from ansible_collections.rdm.provision.plugins.module_utils.constants import JOBS

from rdm_provision import Cluster

ROOT = Path(__file__).parents[2]
EXAMPLES = [ROOT / "inventory" / name for name in ("rocm-sriov", "cuda-sriov", "no-rdma", "mdx")]


@pytest.mark.parametrize("inventory", EXAMPLES, ids=lambda path: path.name)
def test_the_example_inventories_are_sound(inventory: Path) -> None:
    plan = Cluster.load(inventory).plan()
    assert plan.nodes
    assert {node.note for node in plan.nodes} == {"pinned" if inventory.name == "mdx" else "new"}


def test_the_demo_trains_on_what_the_verb_data_brings() -> None:
    demo = yaml.safe_load((ROOT / "trainer" / "configs" / "demo.yaml").read_text(encoding="utf-8"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (made,) = set(re.findall(r"\$\(DATA\)/(\w+)\.idx", makefile))
    assert demo["data"]["blend"] == [f"{JOBS}/data/{made}"]
    assert "data.blend=" not in makefile, "the configuration itself says it"


def program(name: str) -> ModuleType:
    """Return a program of the documentation."""
    source = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert source is not None
    assert source.loader is not None
    module = importlib.util.module_from_spec(source)
    source.loader.exec_module(module)
    return module


def test_the_list_of_variables_is_up_to_date() -> None:
    written = (ROOT / "docs" / "variables.md").read_text(encoding="utf-8")
    assert written == program("generate_variables").page(), "run make docs"


def test_the_pictures_are_up_to_date_and_name_what_there_is() -> None:
    drawing = program("generate_pictures")
    modules = {path.stem for path in (ROOT / "plugins" / "modules").glob("*.py")}
    for name, picture in drawing.PICTURES.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == drawing.svg(picture), "run make docs"
        assert name in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
        said = " ".join(f"{hop.text} {hop.note}" for hop in picture.hops)
        for file in re.findall(r"[\w/]+\.py", said):
            assert [*ROOT.glob(f"rdm_provision/**/{file}"), *ROOT.glob(f"trainer/rdm_*/**/{file}")], file
    called = {hop.text.partition(",")[0] for hop in drawing.UP.hops if hop.start == 1 and hop.end in (1, 2)}
    assert called - {"docker_network"} <= modules
