"""Every link in a page leads somewhere, and every page that a source file names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "roles/*/README.md", "molecule/*.md", "trainer/*.md")
    for page in ROOT.glob(pattern)
)
SOURCES = (
    "Makefile",
    "benchmarks/**/*.py",
    "docs/*.py",
    "inventory/**/*.yml",
    "molecule/**/*.yml",
    "playbooks/**/*.yml",
    "plugins/**/*.py",
    "rdm_*/**/*.py",
    "roles/**/*.yml",
    "tests/**/*.py",
    "trainer/configs/**/*.yaml",
    "trainer/rdm_*/**/*.py",
    "trainer/tests/**/*.py",
)
LINK = re.compile(r"\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)")
NAMED = re.compile(r"(?<![\w/])docs/[\w/-]+\.md(?:#[\w-]+)?")


def prose(page: Path) -> Iterator[str]:
    """Yield the lines of a page that are not in a block of code."""
    fenced = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield line


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub gives a page's headings."""
    found: list[str] = []
    for line in prose(page):
        if heading := re.match(r"#{1,6} +(.*)", line):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).lower().strip()
            anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            before = sum(re.fullmatch(re.escape(anchor) + r"(-\d+)?", one) is not None for one in found)
            found.append(f"{anchor}-{before}" if before else anchor)
    return frozenset(found)


def broken(link: str, page: Path) -> bool:
    """Tell whether a link of a page leads nowhere in this repository."""
    if re.match(r"https?:|mailto:", link):
        return False
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return True
    return bool(anchor) and target.suffix == ".md" and anchor not in anchors(target)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = [link for line in prose(page) for link in LINK.findall(re.sub(r"`[^`]*`", "``", line))]
    assert [link for link in links if broken(link, page)] == []


def test_every_page_that_a_source_file_names_exists() -> None:
    root = ROOT / "README.md"
    named = {
        (str(path.relative_to(ROOT)), link)
        for pattern in SOURCES
        for path in ROOT.glob(pattern)
        for link in NAMED.findall(path.read_text(encoding="utf-8"))
    }
    assert len(named) > 20, "the pages are not found any more"
    assert [one for one in sorted(named) if broken(one[1], root)] == []


@pytest.mark.parametrize("link", ["no-page.md", "CHANGELOG.md#no-anchor", "#no-anchor"])
def test_a_broken_link_is_found(link: str) -> None:
    assert broken(link, ROOT / "README.md")


PATH = re.compile(
    r"`((?:benchmarks|docs|molecule|playbooks|plugins|rdm_\w+|requirements|roles|tests|trainer)/[\w./-]+)`"
)
ELSEWHERE = ("trainer/.venv", "tests/test_nccl_ib.py")
"""What set-up makes, and a file of another repository."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_of_the_repository_that_a_page_names_exists(page: Path) -> None:
    named = [path for path in PATH.findall(page.read_text(encoding="utf-8")) if path not in ELSEWHERE]
    folders = (ROOT, ROOT / "trainer")
    assert [path for path in named if not any((folder / path).exists() for folder in folders)] == []
    tests = {
        path.name for folder in ("tests", "trainer/tests") for path in (ROOT / folder).rglob("test_*.py")
    }
    assert set(re.findall(r"(?<![\w/])test_\w+\.py\b", page.read_text(encoding="utf-8"))) <= tests
