"""What `make test` runs, with a shell that runs no suite and notes which there would be."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

NAMES = ("demo", "distributed", "e2e", "integration", "machines", "molecule", "plugins", "trainer", "unit")
SUITES = [f"suite-{name}" for name in NAMES]
SHELL = """#!/bin/bash
case "$2" in
  *"s/^/"*": /'"*)
    suite=${2##*s/^/}
    suite=suite-${suite%%:*}
    echo "$suite" >>"$NOTED"
    [ "$suite" != "$RED" ];;
  *suite-*) exec bash "$@";;
esac
"""


@pytest.mark.parametrize("red", ["", *SUITES])
def test_all_suites_run_machines_last_and_one_that_is_red_makes_it_red(red: str, tmp_path: Path) -> None:
    shell, noted = tmp_path / "shell", tmp_path / "noted"
    shell.write_text(SHELL)
    shell.chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    done = subprocess.run(
        ["make", "test", f"SHELL={shell}"],
        cwd=ROOT,
        env=environment | {"NOTED": str(noted), "RED": red},
        capture_output=True,
        text=True,
        timeout=60,
    )
    ran = noted.read_text().splitlines()
    assert sorted(ran) == SUITES
    assert ran[-1] == "suite-machines"
    assert (done.returncode == 0) == (not red), done.stdout + done.stderr
