"""The sources of bare hosts' environments: a lock of packages made here, and the real wheel."""

from __future__ import annotations

import hashlib
import subprocess
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import PreconditionFailed
from ansible_collections.rdm.provision.plugins.plugin_utils.python_env import lock as python_lock
from ansible_collections.rdm.provision.plugins.plugin_utils.python_env.lock import Sources

from tests.conftest import ROOT
from tests.unit.plugins.module_utils.python_env.test_environment import wheel

TRAINER = ROOT / "trainer"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """A directory of packages, and an index where there is nothing."""
    wheel(tmp_path / "packages", "helper")
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return Sources(index_url=(tmp_path / "index").as_uri(), find_links=[str(tmp_path / "packages")])


def test_a_lock_has_the_digest_of_each_file_and_is_made_once(sources: Sources, tmp_path: Path) -> None:
    file = tmp_path / "python_env.lock"
    text, made = python_lock.lock(file, "helper==1.0\n", "3.11", sources, write=True)
    digest = hashlib.sha256(next((tmp_path / "packages").iterdir()).read_bytes()).hexdigest()
    assert made
    assert f"helper==1.0 \\\n    --hash=sha256:{digest}" in text
    assert file.read_text(encoding="utf-8") == text
    assert python_lock.lock(file, "helper==1.0\n", "3.11", Sources(), write=True) == (text, False)
    # Another Python may need other files.
    assert python_lock.lock(file, "helper==1.0\n", "3.12", sources, write=True)[1]


def test_a_lock_that_is_for_other_nodes_too_is_not_replaced(sources: Sources, tmp_path: Path) -> None:
    file = tmp_path / "python_env.lock"
    text, _ = python_lock.lock(file, "helper==1.0\n", "3.11", sources, write=True, keep=True)
    with pytest.raises(
        PreconditionFailed, match=r"python_env.lock was made of other requirements.*run without --limit"
    ):
        python_lock.lock(file, "helper==1.0\n", "3.12", sources, write=True, keep=True)
    assert file.read_text(encoding="utf-8") == text


def test_in_check_mode_no_lock_is_written(sources: Sources, tmp_path: Path) -> None:
    file = tmp_path / "python_env.lock"
    assert python_lock.lock(file, "helper==1.0\n", "3.11", sources, write=False)[1]
    assert not file.exists()


def test_a_package_that_is_nowhere_is_named(sources: Sources, tmp_path: Path) -> None:
    message = r"the lock file cannot be made: .*helper==2\.0.*python_env_controller_find_links"
    with pytest.raises(PreconditionFailed, match=message):
        python_lock.lock(tmp_path / "python_env.lock", "helper==2.0\n", "3.11", sources, write=True)


def test_torch_alone_is_replaced_among_the_pins() -> None:
    own = python_lock.requirements_of(TRAINER, "").splitlines()
    other = python_lock.requirements_of(TRAINER, "torch==2.11.0+rocm6.4").splitlines()
    assert [line for line in other if line not in own] == ["torch==2.11.0+rocm6.4"]
    assert len(own) == len(other)


def test_an_extra_adds_its_pins() -> None:
    own, more = (
        python_lock.requirements_of(TRAINER, "", extras).splitlines() for extras in ((), ["finetune"])
    )
    assert more[: len(own)] == own
    assert any(line.startswith("trl==") for line in more[len(own) :])


def test_the_trainers_wheel_is_built_once_and_has_its_program(tmp_path: Path) -> None:
    made = python_lock.trainer_wheel(ROOT / "trainer", tmp_path)
    before = made.stat().st_mtime_ns
    assert python_lock.trainer_wheel(ROOT / "trainer", tmp_path) == made
    assert made.stat().st_mtime_ns == before
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
        (metadata,) = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
    project = tomllib.loads((ROOT / "trainer" / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(packages)
    assert {"rdm_job/agent.py", "rdm_trainer/train.py"} <= set(names)
    assert any(name.endswith("entry_points.txt") for name in names)
    assert not any("__pycache__" in name for name in names)
    needs = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    assert len(needs) > 10
    assert not [line for line in needs if "==" in line.partition("; ")[0]], "it is installed beside others"


def test_a_program_that_is_late_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(argv: list[str], timeout: float, **_more: Any) -> None:
        raise subprocess.TimeoutExpired(argv, timeout)

    monkeypatch.setattr(subprocess, "run", late)
    with pytest.raises(PreconditionFailed) as refused:
        python_lock.run_program(["uv", "pip", "compile", "-"], "the lock file")
    assert refused.value.problems[0].sentence.startswith(
        "the lock file was not there after 1800 s of uv pip compile: see that this machine reaches"
    )
