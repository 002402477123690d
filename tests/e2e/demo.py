"""A fresh clone of this checkout, in which the README's two commands run."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.product import COMMAND_S, environment

# The demo's training, but shorter.
SHORT = "TRAIN=optimisation.train_iterations=4 logging.interval=1"


@dataclass(frozen=True)
class Demo:
    """A clone, and the lab of the demo in it.

    Attributes:
        clone: the directory.
        name: of the lab; not that of a developer's own lab.
        shown: the output of the first `make demo`.
    """

    clone: Path
    name: str
    shown: str = ""

    def run(self, *argv: str) -> str:
        """Run a program in the clone and return its output."""
        done = subprocess.run(
            argv,
            cwd=self.clone,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * COMMAND_S,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def make(self, *argv: str) -> str:
        """Run make in the clone."""
        return self.run("make", *argv, f"LAB={self.name}")
