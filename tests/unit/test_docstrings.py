"""The docstrings of the API describe every argument; ruff sees only those that have a part `Args`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FunctionType, MethodType

import pytest

import rdm_provision


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
