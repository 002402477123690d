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


def test_demo_trains_on_the_files_of_the_verb_data() -> None:
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


def test_the_defaults_of_roles_are_those_of_their_argument_specs() -> None:
    for path in (ROOT / "roles").glob("*/defaults/main.yml"):
        made = yaml.safe_load(program("generate_defaults").defaults(path.parents[1]))
        assert yaml.safe_load(path.read_text(encoding="utf-8")) == made, "run make docs"


def test_the_list_of_variables_is_up_to_date() -> None:
    written = (ROOT / "docs" / "variables.md").read_text(encoding="utf-8")
    assert written == program("generate_variables").page(), "run make docs"


@pytest.mark.parametrize("name", ["architecture", "where-to-change"])
def test_the_pages_for_contributors_name_files_that_exist(name: str) -> None:
    page = (ROOT / "docs" / "development" / f"{name}.md").read_text(encoding="utf-8")
    files = set(re.findall(r"[\w/-]+\.(?:py|yml|sh|j2)\b", page)) - {"hosts.yml"}
    assert len(files) > 30
    folders = ("", "rdm_provision/**/", "playbooks/**/", "plugins/**/", "roles/**/", "trainer/rdm_*/**/")
    there = {file for file in files for folder in folders if any(ROOT.glob(f"{folder}{file}"))}
    assert files - there == set()


def test_the_architecture_names_all_subpackages_and_modules_that_exist() -> None:
    page = (ROOT / "docs" / "development" / "architecture.md").read_text(encoding="utf-8")
    for package in ("plugin_utils", "module_utils"):
        rooms = {path.parent.name for path in (ROOT / "plugins" / package).glob("*/*.py")}
        table = page.partition(f"| subpackage of `plugins/{package}/` |")[2].partition("\n\n")[0]
        named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
        assert named == rooms
    private = page.partition("## What reaches into Ansible")[2].partition("\n## ")[0]
    internals = (ROOT / "plugins/plugin_utils/ansible_internals").glob("*.py")
    assert set(re.findall(r"^\| `(\w+\.py)` \|", private, re.MULTILINE)) == {path.name for path in internals}
    modules = {path.stem for path in (ROOT / "plugins" / "modules").glob("*.py")} | {"docker_network"}
    assert set(re.findall(r"A->>M: (\w+_\w+)", page)) - {"job_plan"} <= modules


def test_times_of_a_suite_that_ran_replace_its_section_and_others_stay() -> None:
    times = program("generate_test_times")
    cases = "".join(
        f'<testcase classname="{name}" name="test_it" time="{seconds}"/>'
        for name, seconds in (
            ("tests.unit.test_a", 4),
            ("tests.unit.test_a.TestIt", 3),
            ("tests.unit.test_b", 2),
        )
    )
    suite = f'<testsuite tests="3" time="90" timestamp="2026-11-26T1">{cases}</testsuite>'
    report = f"<testsuites>{suite}</testsuites>"
    before = times.page("", {"e2e": report, "unit": report.replace('"4"', '"8"')})
    after = times.page(before, {"unit": report})
    assert "tests/unit/test_a.py` | 2 | 11 |" in before
    assert after == times.page("", {"e2e": report, "unit": report})
    assert "3 tests in 1.5 min." in after
    assert "| [e2e](#e2e) | 3 | 1.5 |\n| [unit](#unit) | 3 | 1.5 |\n" in after
    long = times.page(after, {"trainer-long": report})
    assert "| [trainer-long](#trainer-long) | 3 | 1.5 |" in long
    assert "| sum, without `make test-long` | 6 | 3.0 |" in long
    assert "| `tests/unit/test_a.py` | 2 | 7 |\n| 1 files below 5 s each | 1 | 2 |" in after
