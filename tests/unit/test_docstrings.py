"""Docstrings are in one form: what ruff's pydocstyle rules do not see of it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, MethodType

import pytest

import rdm_provision

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "docs", "plugins", "rdm_lab", "rdm_provision", "rdm_sriov", "tests", "trainer")
# Words that are capitals themselves, and names of other things than the argument.
WORDS = {
    "API",
    "AT",
    "CPU",
    "GUID",
    "IDS",
    "MAC",
    "MTU",
    "MY_IP",
    "NAME",
    "NODE",
    "PCI",
    "QOS",
    "RDMA",
    "TIME",
    "URL",
    "VF",
    "VLAN",
}


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions with their files, but the verbs of click: those say OPTION as usage lines do."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            if any(part.startswith(".") for part in path.relative_to(ROOT).parts):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not any(
                    "command" in ast.unparse(one) for one in node.decorator_list
                ):
                    yield path, node


def in_capitals(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the arguments that a function's docstring names by capitals in its prose."""
    prose = re.sub(r"``?[^`]*`", "", ast.get_docstring(node) or "")
    named = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
    every = [*named, *(one for one in (node.args.vararg, node.args.kwarg) if one)]
    return {one.arg.upper() for one in every if one.arg.islower()} & set(re.findall(r"\b[A-Z_]{2,}\b", prose))


def test_no_argument_is_named_by_capitals() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}": in_capitals(node) - WORDS
        for path, node in functions()
    }
    assert len(found) > 4000
    assert {where: words for where, words in found.items() if words} == {}


def test_an_argument_in_capitals_is_found() -> None:
    (node,) = ast.parse('def take(home, *, what):\n    """Take the lock in HOME, for ``WHAT``."""').body
    assert isinstance(node, ast.FunctionDef)
    assert in_capitals(node) == {"HOME"}


def api() -> Iterator[tuple[str, FunctionType | MethodType]]:
    """Yield the methods of what the package offers that take more than one argument."""
    for name in rdm_provision.__all__:
        cls = getattr(rdm_provision, name)
        for method, function in inspect.getmembers(cls) if inspect.isclass(cls) else ():
            if isinstance(function, FunctionType | MethodType) and not method.startswith("_"):
                arguments = [one for one in inspect.signature(function).parameters if one != "self"]
                if len(arguments) > 1:
                    yield f"{name}.{method}", function


@pytest.mark.parametrize(("name", "method"), list(api()))
def test_each_argument_of_the_api_is_described(name: str, method: FunctionType | MethodType) -> None:
    text = inspect.getdoc(method) or ""
    arguments = [one for one in inspect.signature(method).parameters if one != "self"]
    assert [one for one in arguments if f"\n    {one}: " not in text] == [], name
