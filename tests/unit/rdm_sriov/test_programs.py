"""The programs that nodes keep are whole, and run with nothing but Python, or they are not made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.zip_program import (
    from_argument,
    packed_program,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.node_programs import (
    program,
    program_argument,
)


@pytest.mark.parametrize(
    ("name", "does"),
    [("plugin", "gives each container a virtual function"), ("boot", "Makes this node's virtual functions")],
)
def test_it_runs_with_nothing_but_python(tmp_path: Path, name: str, does: str) -> None:
    path = tmp_path / "program"
    path.write_bytes(from_argument(program_argument(name)))
    command = [sys.executable, "-I", "-S", str(path), "--help"]
    done = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True, check=True)
    assert does in done.stdout


def test_it_is_the_same_file_each_time() -> None:
    assert program("plugin") == program("plugin") != program("boot")


PACKAGE = "ansible_collections.rdm.provision.rdm_sriov"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"from {PACKAGE}.gone import x", "a.py imports .*rdm_sriov.gone, which does not exist"),
        (f"from {PACKAGE} import gone", "a.py imports .*rdm_sriov.gone, which does not exist"),
        (f"def later():\n    import {PACKAGE}.gone", "a.py imports .*rdm_sriov.gone, which does not exist"),
        ("import requests", "a.py imports requests, which a node may not have"),
        ("from . import b", r"a.py imports \., which a node may not have"),
    ],
)
def test_missing_dependency_fails_the_build(tmp_path: Path, text: str, why: str) -> None:
    """A part that is missing would fail only the node's next start."""
    (tmp_path / "rdm_sriov").mkdir()
    (tmp_path / "rdm_sriov/a.py").write_text(f"import json\n{text}\n")
    with pytest.raises(ImportError, match=why):
        packed_program(tmp_path, f"from {PACKAGE} import a")
