"""What imports what: no module needs, through others, itself."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLLECTION = "ansible_collections.rdm.provision.plugins"
PACKAGES = {
    "rdm_provision": ROOT / "rdm_provision",
    f"{COLLECTION}.plugin_utils": ROOT / "plugins/plugin_utils",
    f"{COLLECTION}.module_utils": ROOT / "plugins/module_utils",
}


def modules() -> dict[str, Path]:
    """Return the modules of PACKAGES, by name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a piece of a program imports, in functions too, but not for types alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imports(node)


def circle(sources: dict[str, str]) -> list[str]:
    """Return the modules of a circle of imports, by the names and sources of all; none if there is none."""
    graph = {
        name: {other for other in imports(ast.parse(text)) if other in sources and other != name}
        for name, text in sources.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_through_others() -> None:
    sources = {name: path.read_text(encoding="utf-8") for name, path in modules().items()}
    assert len(sources) > 150
    assert circle(sources) == []


def test_a_circle_is_found_in_functions_too_and_not_where_only_types_are_imported() -> None:
    there = {"a": "from b import x", "b": "def x():\n    import c", "c": "from b import y"}
    assert set(circle(there)) == {"b", "c"}
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from b import x"
    assert circle({"a": types, "b": "import a"}) == []
