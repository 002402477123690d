"""One function on each side replaces files; what else is renamed is no text of ours."""

from __future__ import annotations

import ast

import pytest

from tests.conftest import ROOT

CONTROL_SIDE = ("plugins", "rdm_lab", "rdm_provision", "rdm_sriov")
RENAMES = {
    "plugins/module_utils/base/atomic_file.py",
    "plugins/module_utils/python_env/environment.py",  # a link
    "plugins/module_utils/python_env/megatron_helpers.py",  # what a compiler has written
    "plugins/modules/job_data.py",  # a copy of any size, below a directory that may be replaced meanwhile
    "plugins/plugin_utils/python_env/lock.py",  # a directory
    "rdm_lab/host.py",  # a directory
    "rdm_lab/images.py",  # an archive of gigabytes
    "rdm_sriov/state.py",  # a file that cannot be read
}
NODE_SIDE = tuple(f"trainer/rdm_{name}" for name in ("core", "job", "log", "planner", "trainer"))
NODE_RENAMES = {
    "trainer/rdm_core/atomic_file.py",
    "trainer/rdm_job/links.py",  # a link
    "trainer/rdm_job/outputs.py",  # a link
    "trainer/rdm_job/removal.py",  # a directory
    "trainer/rdm_job/rotation.py",  # logs
    "trainer/rdm_job/slurm/image.py",  # an archive of gigabytes
    "trainer/rdm_trainer/checkpoint/files.py",  # directories
    "trainer/rdm_trainer/checkpoint/storage.py",  # a file of gigabytes that another node sends
    "trainer/rdm_trainer/data/indexed_dataset.py",  # data sets of gigabytes, two files that belong together
    "trainer/rdm_trainer/tools/download/fetch.py",  # a download that is resumed
    "trainer/rdm_trainer/tools/preprocess/run.py",  # data sets whose making is resumed
    "trainer/rdm_trainer/weights/directory.py",  # a directory
    "trainer/rdm_trainer/weights/megatron/writing.py",  # a directory
}


def renames(tree: ast.AST) -> bool:
    """Return whether a program renames a file.

    `Path.replace` has one argument; `str.replace` has two, and `dataclasses.replace` names all but one.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(
        call.func.attr == "rename"
        or (
            call.func.attr == "replace"
            and (ast.unparse(call.func.value) == "os" or (len(call.args) == 1 and not call.keywords))
        )
        for call in calls
        if isinstance(call.func, ast.Attribute)
    )


@pytest.mark.parametrize(("folders", "expected"), [(CONTROL_SIDE, RENAMES), (NODE_SIDE, NODE_RENAMES)])
def test_one_function_replaces_files(folders: tuple[str, ...], expected: set[str]) -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if renames(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == expected


def test_a_rename_is_found() -> None:
    assert renames(ast.parse("os.replace(one, other)"))
    assert renames(ast.parse("path.replace(other)"))
    assert not renames(ast.parse("text.replace('a', 'b')"))
    assert not renames(ast.parse("dataclasses.replace(job, name='b')"))
