"""What `make test` runs, with a shell that only notes the suites; and how `make test-stress` ends."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from trainer.tests.waiting import wait_until

NAMES = (
    *("demo", "distributed", "e2e", "images", "integration", "jobs"),
    *("machines", "molecule", "plugins", "trainer", "unit"),
)
SUITES = [f"suite-{name}" for name in NAMES]
OUTSIDE = {
    name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
}
"""The environment without that of a `make` that runs these tests."""
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
    done = subprocess.run(
        ["make", "test", f"SHELL={shell}"],
        cwd=ROOT,
        # In a round of `make test-stress SUITES=unit`, tests have SUITES in their environment.
        env=OUTSIDE | {"NOTED": str(noted), "RED": red, "SUITES": "unit"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    ran = noted.read_text().splitlines()
    assert sorted(ran) == SUITES
    assert ran[-1] == "suite-machines"
    assert (done.returncode == 0) == (not red), done.stdout + done.stderr


STRESS_SHELL = """#!/bin/bash
case "$2" in *"trap "*) exec bash "$@";; esac
"""
SUITE = """#!/usr/bin/env python3
import pathlib, signal, sys
here = pathlib.Path(sys.argv[0]).parent
try:
    (here / "started").touch()
    signal.pause()
finally:
    (here / "cleaned").touch()
"""


def test_a_terminated_stress_test_ends_its_round_which_cleans_up(tmp_path: Path) -> None:
    for name, text in {"shell": STRESS_SHELL, "suite": SUITE, "nproc": "#!/bin/sh\necho 1\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    make = subprocess.Popen(
        [
            "make",
            "test-stress",
            "SUITES=unit",
            f"SHELL={tmp_path}/shell",
            f"SUITE={tmp_path}/suite",
            f"STRESS={tmp_path}",
        ],
        cwd=ROOT,
        env=OUTSIDE | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until("a round runs", (tmp_path / "started").exists)
    make.terminate()
    assert make.wait(timeout=240) != 0
    assert (tmp_path / "cleaned").exists()
    session = ["ps", "-o", "pid=", "-s", str(make.pid)]
    wait_until("nothing of it is left", lambda: not subprocess.run(session, capture_output=True).stdout)
