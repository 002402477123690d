"""A real pyenv, which this machine must have, builds a Python from a local mirror. It takes minutes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.python_env import base_python

pytestmark = pytest.mark.long

VERSION = "3.13.5"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian's source archive of Python, which is the file that pyenv's definition names."""
    directory = tmp_path_factory.mktemp("source")
    known = ["apt-get", "download", "--print-uris", "bash"]
    uris = subprocess.run(known, capture_output=True, text=True, check=True).stdout
    archive = uris.split("'")[1].partition("/pool/")[0].replace("debian-security", "debian")
    (directory / "lists" / "partial").mkdir(parents=True)
    (directory / "sources.list").write_text(f"deb-src [trusted=yes] {archive} trixie main\n")
    apt = ["apt-get", "-qq"]
    for name, value in {
        "Etc::sourcelist": directory / "sources.list",
        "Etc::sourceparts": "-",
        "State::lists": directory / "lists",
        "Cache": directory / "cache",
    }.items():
        apt += ["-o", f"Dir::{name}={value}"]
    for words in (["update"], ["source", "--download-only", "python3.13"]):
        subprocess.run([*apt, *words], cwd=directory, check=True, timeout=600)
    return directory / f"python3.13_{VERSION}.orig.tar.xz"


def test_pyenv_builds_a_python_or_reports_the_error(source: Path, tmp_path: Path) -> None:
    pyenv = base_python.pyenv_program(str(Path.home() / ".pyenv"))
    mirror, root = tmp_path / "mirror", tmp_path / "pyenv"
    mirror.mkdir()
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "pyenv").symlink_to(pyenv)
    shutil.copy(source, mirror / hashlib.sha256(source.read_bytes()).hexdigest())
    variables = {**os.environ, "PYTHON_BUILD_MIRROR_URL": mirror.as_uri(), "TMPDIR": str(tmp_path)}
    with pytest.raises(NodeError, match=r"C compiler cannot create executables.*all of it is in") as caught:
        base_python.build_python(str(root), VERSION, {**variables, "CC": "/bin/false"})
    assert Path(str(caught.value).split()[-1].rstrip(")")).stat().st_size > 0
    assert base_python.pyenv_python(str(root), VERSION) is None
    built = base_python.build_python(str(root), VERSION, variables)
    assert built == f"{root}/versions/{VERSION}/bin/python3"
    subprocess.run([built, "-m", "venv", str(tmp_path / "env")], check=True)
    result = subprocess.run(
        [tmp_path / "env" / "bin" / "python", "-V"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"Python {VERSION}\n"
