"""Nodes may have Python 3.8, and linters and type checkers here assume a newer one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OLDEST = (3, 8)
FOLDERS = ("plugins/modules", "plugins/module_utils", "rdm_sriov")
"""As in `per-file-ignores` of pyproject.toml."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_oldest_python_of_a_node_reads_each_file(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    for path in files:
        ast.parse(path.read_text(), str(path), feature_version=OLDEST)


def test_what_a_newer_python_alone_reads_is_found() -> None:
    with pytest.raises(SyntaxError):
        ast.parse("with (open('a') as a, open('b') as b):\n    pass\n", feature_version=OLDEST)
