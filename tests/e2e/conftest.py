"""The product installed from its wheel, in an empty directory, and a lab of three nodes for all tests."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.demo import SHORT, Demo
from tests.e2e.product import ROOT, Lab, Product, running_lab
from tests.e2e.slurm_lab import SlurmLab, running_slurm
from tests.labs import lab_name, left_over

# Each of these files starts from the nodes as the previous one leaves them. Each can also run alone, and then
# makes that state first.
_ORDER = (
    "test_wheel",  # needs none
    *("test_bad_input", "test_cycle", "test_drift", "test_down", "test_api", "test_faults"),
    # These have labs of their own.
    *("test_demo", "test_train", "test_demo_down"),
    *("test_vm", "test_vm_move", "test_vm_rails", "test_vm_rdma"),
    *("test_rails", "test_podman", "test_bare_hosts", "test_watch"),
    *("test_slurm_jobs", "test_slurm"),  # share one
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files so that few tests need a run that only prepares them."""

    def position(item: pytest.Item) -> int:
        if item.path.parent != Path(__file__).parent:
            return -1
        return _ORDER.index(item.path.stem) if item.path.stem in _ORDER else len(_ORDER)

    items.sort(key=position)


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Product:
    """The wheel, built from this checkout and installed with the pinned dependencies."""
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
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
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


@pytest.fixture(scope="session")
def slurm(product: Product) -> Iterator[SlurmLab]:
    """Three nodes that are a Slurm cluster; each test leaves it running."""
    with running_slurm(product, lab_name("e2e-slurm")) as lab:
        yield lab


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A fresh clone after its first `make demo`; the remains of a killed run's lab are removed first."""
    clone = tmp_path_factory.mktemp("demo") / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    demo = Demo(clone, lab_name("e2e-demo"))
    if left_over(demo.name):
        demo.make("demo-down")
    try:
        yield replace(demo, shown=demo.make("demo", "NODES=2", SHORT))
    finally:
        if left_over(demo.name):
            demo.make("demo-down")
