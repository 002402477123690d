"""Megatron's helpers: a real pybind11 module, compiled in a small checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.python_env import megatron_helpers
from ansible_collections.rdm.provision.plugins.modules import megatron_helpers as module

from tests.conftest import ROOT
from tests.integration.test_python_env_role import play
from tests.unit.plugins.module_utils.python_env.test_environment import Node
from tests.unit.plugins.modules.running import run_module

# It has torch, whose wheel contains pybind11's headers.
ENVIRONMENT = str(ROOT / "trainer" / ".venv")
HELPERS = """\
#include <pybind11/pybind11.h>
PYBIND11_MODULE(helpers, module) {
    module.def("samples", [](int tokens, int length) { return (tokens - 1) / length; });
}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    source = tmp_path / megatron_helpers.SOURCES[0]
    source.parent.mkdir(parents=True)
    source.write_text(HELPERS)
    # As in a real checkout: for another Python, and never run.
    source.with_name("Makefile").write_text("LIBEXT = $(shell /home/somebody/python3-config)\n")
    return tmp_path


def options(checkout: Path, **more: str) -> dict[str, str]:
    return {"checkout": str(checkout), "environment": ENVIRONMENT, **more}


def test_the_role_checks_a_branch_out_and_builds_for_the_environments_python(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("node")
    git = ["git", "-C", str(checkout), "-c", "user.name=n", "-c", "user.email=n@example.com"]
    for words in (["init", "-qb", "multi-node"], ["add", "."], ["commit", "-qm", "ours"]):
        subprocess.run([*git, *words], check=True)
    there = folder / "Megatron-DeepSpeed"
    node = Node(folder)
    for expected in (2, 0):
        code, stats, output = play(
            node,
            ENVIRONMENT,
            part="megatron",
            python_env_megatron=str(there),
            python_env_megatron_repository=str(checkout),
            python_env_megatron_version="multi-node",
        )
        assert code == 0, output
        # They share it.
        assert [stats[name]["changed"] for name in ("n1", "n2")] == [expected, 0], output
    command = [f"{ENVIRONMENT}/bin/python", "-Bc", "import helpers; print(helpers.samples(4097, 1024))"]
    data = there / "megatron" / "data"
    assert subprocess.run(command, cwd=data, capture_output=True, text=True, check=True).stdout == "4\n"
    # Another branch may have different helpers.
    (built,) = data.glob("*.so")
    was, later = built.stat().st_mtime_ns, built.stat().st_mtime_ns + 10**9
    os.utime(data / "helpers.cpp", ns=(later, later))
    assert run_module(module, options(there), check=True)["changed"]
    # A module of another environment, or one that was rebuilt since then, is not ours to remove.
    absent = options(there, state="absent")
    assert not run_module(module, {**absent, "environment": "/nowhere"})["changed"]
    os.utime(built, ns=(later, later))
    assert not run_module(module, options(there))["changed"]
    assert not run_module(module, absent)["changed"]
    os.utime(built, ns=(was, was))
    assert run_module(module, absent)["removed"] == [str(built)]
    assert sorted(path.name for path in data.iterdir()) == ["Makefile", "helpers.cpp"]


def test_failed_build_shows_the_compilers_last_lines_and_leaves_nothing(checkout: Path) -> None:
    what = megatron_helpers.plan(str(checkout), ENVIRONMENT)
    Path(what.source).write_text("#error no such thing\n")
    with pytest.raises(NodeError, match=r"could not build .*helpers.cpp: .*no such thing"):
        megatron_helpers.build(what, ENVIRONMENT)
    assert sorted(path.name for path in Path(what.source).parent.iterdir()) == ["Makefile", "helpers.cpp"]


def test_missing_megatron_or_environment_is_one_sentence(checkout: Path) -> None:
    with pytest.raises(NodeError, match=r"has neither megatron/data/helpers.cpp nor .*: give"):
        megatron_helpers.plan(str(checkout / "megatron"), ENVIRONMENT)
    with pytest.raises(NodeError, match="there is no environment at /nowhere to build for"):
        megatron_helpers.plan(str(checkout), "/nowhere")
    assert not run_module(module, options(checkout, environment="/nowhere", state="absent"))["changed"]


def test_a_megatron_with_a_core_has_them_elsewhere(checkout: Path) -> None:
    core = checkout / megatron_helpers.SOURCES[1]
    core.parent.mkdir(parents=True)
    (checkout / megatron_helpers.SOURCES[0]).rename(core)
    what = megatron_helpers.plan(str(checkout), ENVIRONMENT)
    assert what.source == str(core)
    assert what.command("c++", "made.so")[-3:] == [str(core), "-o", "made.so"]
