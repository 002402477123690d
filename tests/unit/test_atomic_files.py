"""One function replaces files; what else is renamed is no text of ours."""

from __future__ import annotations

import ast

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


def renames(tree: ast.AST) -> bool:
    """Return whether a program renames a file; `str.replace` has two arguments, `Path.replace` has one."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(
        call.func.attr == "rename"
        or (call.func.attr == "replace" and (len(call.args) == 1 or ast.unparse(call.func.value) == "os"))
        for call in calls
        if isinstance(call.func, ast.Attribute)
    )


def test_one_function_replaces_files() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in CONTROL_SIDE
        for path in (ROOT / folder).rglob("*.py")
        if renames(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == RENAMES


def test_a_rename_is_found() -> None:
    assert renames(ast.parse("os.replace(one, other)"))
    assert renames(ast.parse("path.replace(other)"))
    assert not renames(ast.parse("text.replace('a', 'b')"))
