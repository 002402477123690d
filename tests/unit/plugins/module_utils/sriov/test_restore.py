"""The program that restores VFs when a node starts is whole, or it is not made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.sriov import restore
from ansible_collections.rdm.provision.plugins.module_utils.sriov.functions import VfProblem


def test_it_runs_with_nothing_but_python(tmp_path: Path) -> None:
    path = tmp_path / "rdm-sriov-vf"
    path.write_bytes(restore.program())
    command = [sys.executable, "-I", "-S", str(path), "--help"]
    done = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True, check=True)
    assert "Makes this node's virtual functions" in done.stdout


def test_a_part_that_is_missing_is_no_empty_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one would fail the unit at the node's next start, when nobody looks."""
    monkeypatch.setattr(restore, "_MODULES", ("hardware.sysfs", "hardware.gone"))
    with pytest.raises(VfProblem, match=r"the program that restores VFs cannot be made: .*hardware\.gone"):
        restore.program()


def test_a_part_without_its_source_is_no_empty_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compiled_only.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(restore, "_PACKAGE", "")
    monkeypatch.setattr(restore, "_MODULES", ("compiled_only",))
    with pytest.raises(VfProblem, match="there is no source of compiled_only"):
        restore.program()
