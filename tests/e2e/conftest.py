"""The product installed from its wheel, in an empty directory, and a lab of three nodes for all tests."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.product import ROOT, Lab, Product, running_lab
from tests.labs import lab_name


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Product:
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
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    subprocess.run(
        [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True
    )
    # The dependencies are the test environment's; the wheel's own files come first.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    for script in ("ansible-playbook", "ansible-inventory", "ansible-doc", "ansible-galaxy"):
        text = (Path(sys.executable).parent / script).read_text(encoding="utf-8")
        target = python.parent / script
        target.write_text(f"#!{python}\n" + text.split("\n", 1)[1], encoding="utf-8")
        target.chmod(0o755)
    directory = home / "work"
    directory.mkdir()
    return Product(python.parent, directory)


@pytest.fixture(scope="session")
def lab(product: Product) -> Iterator[Lab]:
    """Three nodes that all tests share; each test leaves them running and plugged in."""
    with running_lab(product, lab_name("e2e"), "--nodes", "3") as lab:
        yield lab
