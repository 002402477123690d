"""What `ansible-doc` shows of a filter is what it takes."""

from __future__ import annotations

import importlib
import inspect

import pytest
import yaml

from tests.conftest import ROOT


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "plugins/filter").glob("*.py")))
def test_documented_options_are_the_parameters(name: str) -> None:
    module = importlib.import_module(f"ansible_collections.rdm.provision.plugins.filter.{name}")
    documentation = yaml.safe_load(module.DOCUMENTATION)
    (taken, *further) = inspect.signature(module.FilterModule().filters()[name]).parameters.values()
    assert documentation["name"] == name
    assert documentation["options"].pop("_input")["required"] == (taken.default is taken.empty)
    documented = {option: one["default"] or None for option, one in documentation["options"].items()}
    assert documented == {one.name: one.default or None for one in further}
    assert documentation["positional"] == ", ".join(["_input", *documented])
