"""The product as its users have it: installed from its wheel, run in an empty directory, on lab nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Installed:
    """A virtual environment that has the wheel, and an empty directory to work in."""

    bin: Path
    directory: Path

    def run(
        self, *argv: str | Path, expect: int = 0, timeout: float = 600, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment; fail the test, with its output, on another exit code."""
        done = subprocess.run(
            [str(part) for part in argv],
            cwd=self.directory,
            env=self.environment(**env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == expect, (
            f"{' '.join(map(str, argv))} exited with {done.returncode}, not {expect}\n"
            f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
        )
        return done

    def rdm(self, *argv: str, expect: int = 0, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run ``rdm-provision`` with these arguments."""
        return self.run("rdm-provision", *argv, expect=expect, timeout=timeout)

    def json(self, verb: str, *argv: str, expect: int = 0) -> Any:
        """Run ``rdm-provision`` with ``--json`` and return what it printed."""
        return json.loads(self.rdm(verb, "--json", *argv, expect=expect).stdout)

    def environment(self, **env: str) -> dict[str, str]:
        keep = {
            name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "RDM_"))
        }
        keep.pop("PYTHONPATH", None)
        return keep | {"PATH": f"{self.bin}:{os.environ['PATH']}", "NO_COLOR": "1"} | env


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel, built from this checkout and installed beside the pinned dependencies."""
    home = tmp_path_factory.mktemp("installed")
    wheels = home / "wheels"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT)],
        check=True,
    )
    (wheel,) = wheels.glob("*.whl")
    venv.create(home / "venv", with_pip=False)
    python = home / "venv" / "bin" / "python"
    site = Path(
        subprocess.run(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    )
    subprocess.run(
        [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True
    )
    # The dependencies are the test environment's; the wheel's own files come first.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    for script in ("ansible", "ansible-playbook", "ansible-inventory", "ansible-doc", "ansible-galaxy"):
        text = (Path(sys.executable).parent / script).read_text(encoding="utf-8")
        target = python.parent / script
        target.write_text(f"#!{python}\n" + text.split("\n", 1)[1], encoding="utf-8")
        target.chmod(0o755)
    directory = home / "work"
    directory.mkdir()
    return Installed(python.parent, directory)


@dataclass(frozen=True)
class Lab:
    """A lab of three nodes, and how to reach into them from the machine they run on."""

    product: Installed
    name: str

    @property
    def inventory(self) -> Path:
        return self.product.directory / "inventory" / self.name

    def on(self, node: str, *argv: str, check: bool = True) -> str:
        """Run a program on a node, as root, past ssh."""
        done = subprocess.run(
            ["docker", "exec", f"rdm-lab-{self.name}-{node}", *argv],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def rdm(self, verb: str, *argv: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a verb of ``rdm-provision`` on this lab's inventory."""
        return self.product.rdm(verb, "--inventory", str(self.inventory), *argv, expect=expect)

    def json(self, verb: str, *argv: str, expect: int = 0) -> Any:
        """The same, with what it printed as JSON."""
        return self.product.json(verb, "--inventory", str(self.inventory), *argv, expect=expect)

    def lab(self, verb: str, *argv: str) -> None:
        """``rdm-provision lab VERB`` for this lab."""
        self.product.rdm("lab", verb, "--name", self.name, *argv)


@pytest.fixture(scope="session")
def lab(installed: Installed) -> Iterator[Lab]:
    lab = Lab(installed, "lab-e2e")
    try:
        installed.rdm("lab", "up", "--nodes", "3", "--name", lab.name)
        yield lab
    finally:
        installed.rdm("lab", "down", "--name", lab.name)
