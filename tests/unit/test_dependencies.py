"""Both projects can be installed beside others, and are tested with versions that are pinned."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECTS = (ROOT, ROOT / "trainer")
PIN = re.compile(r"^([\w.-]+)==([\w.!+]+)(?: \\)?$", re.MULTILINE)


def pins(*files: Path) -> dict[str, str]:
    """Return the exact versions that requirements files name, by name."""
    found = [one for file in files for one in PIN.findall(file.read_text(encoding="utf-8"))]
    return {canonicalize_name(name): version for name, version in found}


@pytest.mark.parametrize("folder", PROJECTS, ids=lambda folder: folder.name)
def test_a_project_names_ranges_and_the_pinned_version_is_in_each(folder: Path) -> None:
    named = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    runtime, *more = sorted((folder / "requirements").glob("*.txt"), key=lambda file: file.stem != "runtime")
    extras = [one for extra in named["project"]["optional-dependencies"].values() for one in extra]
    groups = (
        (named["project"]["dependencies"], pins(runtime)),
        (extras, pins(runtime, *more)),
        (named["build-system"]["requires"], pins(runtime, *more)),
    )
    for group, pinned in groups:
        for requirement in map(Requirement, group):
            assert ">=" in {one.operator for one in requirement.specifier} <= {">=", "<"}, str(requirement)
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), str(
                requirement
            )


@pytest.mark.parametrize("name", ["runtime", "dev", "build"])
def test_packages_of_a_checkout_are_pinned_with_digests(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(lines) > 5
    assert [line for line in lines if not re.match(r"[\w.-]+==[\w.]+ +--hash=sha256:", line)] == []


def test_build_dependencies_are_the_tested_ones() -> None:
    build = pins(ROOT / "requirements/build.txt")
    both = pins(ROOT / "requirements/runtime.txt") | pins(ROOT / "requirements/dev.txt")
    assert {name: version for name, version in build.items() if name in both} == {
        name: both[name] for name in build if name in both
    }


def test_the_newest_release_of_the_changelog_is_the_version_of_every_part() -> None:
    releases = re.findall(r"^## (\d\S*) ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    product = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    collection = re.findall(
        r"^version: (\S+)", (ROOT / "galaxy.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    core = (ROOT / "trainer/rdm_core/__init__.py").read_text(encoding="utf-8")
    assert [product, *collection, *re.findall(r'__version__ = "(\S+)"', core)] == [releases[0]] * 3


def test_no_merge_has_doubled_a_part_of_the_changelog() -> None:
    releases = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    for release in releases:
        headings = re.findall(r"^### .*", release, re.MULTILINE)
        assert len(headings) == len(set(headings)), release.splitlines()[0]
    entries = re.findall(r"^- .*", "\n".join(releases), re.MULTILINE)
    assert len(entries) == len(set(entries))
