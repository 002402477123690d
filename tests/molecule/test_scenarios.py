"""Every molecule scenario, one after the other on one lab."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.labs import engine_answers

ROOT = Path(__file__).parents[2]
# Each begins with what the one before it leaves, as far as can be. Where the default one fails, the others
# have little to say.
SCENARIOS = (
    "default",  # leaves a cluster
    "changed-settings",  # begins with one
    "no-root-user",  # leaves bare nodes
    "nodes-come-and-go",
)


def molecule(*argv: str) -> None:
    """Run molecule; fail the test with the end of its output when it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "molecule", *argv],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Only a hang reaches it: the first scenario may wait until another suite has made the lab's images.
        timeout=3600,
    )
    assert done.returncode == 0, (
        f"molecule {' '.join(argv)} exited with {done.returncode}\n{done.stdout[-8000:]}"
    )


@pytest.fixture(scope="module")
def no_lab() -> Iterator[None]:
    """No lab before, whatever a killed run has left, and none after. The first scenario makes it."""
    if engine_answers():
        molecule("destroy")
    yield
    molecule("destroy")


def test_every_scenario_is_listed() -> None:
    assert sorted(SCENARIOS) == sorted(
        path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml")
    )


@pytest.mark.usefixtures("no_lab")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str) -> None:
    try:
        molecule("test", "--scenario-name", scenario, "--destroy", "never")
    except AssertionError:
        molecule("destroy")  # the next scenario shall not suffer
        raise
