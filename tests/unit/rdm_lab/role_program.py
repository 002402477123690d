"""A program of the role `lab`, in a test."""

from __future__ import annotations

from types import ModuleType

from tests.conftest import ROOT


def load(path: str) -> ModuleType:
    """Return a program of the role's files as a module.

    An import would leave compiled code among those files.
    """
    program = ROOT / "roles/lab/files" / path
    module = ModuleType(path)
    exec(compile(program.read_text(), str(program), "exec"), module.__dict__)
    return module
