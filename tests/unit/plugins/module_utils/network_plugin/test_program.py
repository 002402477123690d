"""The program is the same file, wherever it is made of the same sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ansible_collections.rdm.provision.plugins.module_utils.network_plugin.program import (
    digest,
    own_sources,
    program,
    sources_in,
)

MODULE_UTILS = Path(__file__).parents[5] / "plugins/module_utils"


def test_it_is_the_same_file_from_a_checkout_and_from_what_is_imported() -> None:
    assert own_sources() == sources_in(MODULE_UTILS)
    assert program(own_sources()) == program(sources_in(MODULE_UTILS))
    assert digest(b"one") != digest(b"other")


def test_it_runs_with_nothing_but_python(tmp_path: Path) -> None:
    path = tmp_path / "rdm-sriov"
    path.write_bytes(program(sources_in(MODULE_UTILS)))
    command = [sys.executable, "-I", "-S", str(path), "--help"]
    done = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True, check=True)
    assert "gives each container a virtual function" in done.stdout
