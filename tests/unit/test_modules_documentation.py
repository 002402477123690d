"""What a module says about itself is what it does: `ansible-doc` and the argument_spec agree."""

from __future__ import annotations

import ast
import importlib
import inspect
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.unit.plugins.modules.running import documented_options

MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py") if path.stem != "__init__")


@pytest.fixture(params=MODULES)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"ansible_collections.rdm.provision.plugins.modules.{request.param}")


def whole(module: ModuleType) -> dict[str, Any]:
    """Return the documentation with that of its fragments, as `ansible-doc` shows it."""
    found: dict[str, Any] = yaml.safe_load(module.DOCUMENTATION)
    names = found.get("extends_documentation_fragment") or []
    for name in [names] if isinstance(names, str) else names:
        file, _, part = name.removeprefix("rdm.provision.").partition(".")
        fragments = importlib.import_module(f"ansible_collections.rdm.provision.plugins.doc_fragments.{file}")
        shared = yaml.safe_load(getattr(fragments.ModuleDocFragment, part.upper() or "DOCUMENTATION"))
        for kind in ("options", "attributes"):
            found[kind] = {**shared.get(kind, {}), **(found.get(kind) or {})}
    return found


def action_options(name: str) -> dict[str, Any]:
    """Return the options that the action of a module's name takes."""
    action = importlib.import_module(f"ansible_collections.rdm.provision.plugins.action.{name}")
    options: dict[str, Any] = action.ActionModule.ARGUMENTS
    return options


def test_documented_options_are_the_argument_spec(module: ModuleType) -> None:
    # An action takes its options from the documentation itself.
    spec = getattr(module, "ARGUMENT_SPEC", None) or action_options(module.__name__.rpartition(".")[2])
    assert documented_options(yaml.safe_dump(whole(module))) == documented_options(spec)


def test_imports_follow_the_documentation(module: ModuleType) -> None:
    # As ansible-test requires it (import-before-documentation).
    body = ast.parse(inspect.getsource(module)).body
    imports = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    documented = next(node.lineno for node in body if isinstance(node, ast.Assign))
    assert [ast.unparse(node) for node in imports if node.lineno < documented] in (
        [],
        ["from __future__ import annotations"],
    )


def test_documentation_has_its_parts(module: ModuleType) -> None:
    documentation = whole(module)
    assert documentation["module"] == module.__name__.rpartition(".")[2]
    assert documentation["short_description"]
    assert documentation["description"]
    assert {"check_mode", "diff_mode", "idempotent"} <= set(documentation["attributes"])


def test_every_option_is_described(module: ModuleType) -> None:
    options = whole(module).get("options") or {}
    assert [name for name, option in options.items() if not option.get("description")] == []


def test_examples_use_the_module(module: ModuleType) -> None:
    # Most actions that decide are for our playbooks, which show how they are used.
    documented = hasattr(module, "EXAMPLES")
    assert documented or not hasattr(module, "ARGUMENT_SPEC")
    examples = yaml.safe_load(module.EXAMPLES) if documented else []
    name = f"rdm.provision.{module.__name__.rpartition('.')[2]}"
    assert any(name in task for task in examples) == documented
    assert all(task.get("name") for task in examples)


def test_returned_values_are_described(module: ModuleType) -> None:
    returned = yaml.safe_load(module.RETURN)
    assert [name for name, value in returned.items() if not value.get("description")] == []


def test_former_names_of_options_give_a_notice(module: ModuleType) -> None:
    # Actions on the controller give theirs for each alias.
    options = list(getattr(module, "ARGUMENT_SPEC", {}).values())
    for option in options:
        options += option.get("options", {}).values()
        assert [one["name"] for one in option.get("deprecated_aliases", ())] == option.get("aliases", [])
