"""Who talks to a node's engine: our client, and roles where a module of community.docker does it right."""

from __future__ import annotations

import ast
import re

from tests.conftest import ROOT

ON_NODES = ("plugins", "rdm_sriov", "trainer/rdm_job")
MODULES = {
    # Each authenticates with the user's own docker login, or reads a build context.
    "docker_image_pull": {"images"},
    "docker_image": {"images"},
    "docker_image_remove": {"images"},
    # Each compares with what is there, and says what differs.
    "docker_network": {"network"},
    "docker_container": {"sriov"},
}
"""Modules of community.docker, and the roles that use them."""


def test_nothing_on_nodes_runs_the_docker_command_or_needs_the_sdk() -> None:
    found = []
    for path in [path for folder in ON_NODES for path in (ROOT / folder).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            names |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
            argv = node.elts[:1] if isinstance(node, ast.List | ast.Tuple) and len(node.elts) > 1 else []
            runs = any(isinstance(word, ast.Constant) and word.value in ("docker", "podman") for word in argv)
            if runs or any(name.partition(".")[0] == "docker" for name in names):
                found.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}")
    # The processes that listen at Podman's socket, which is no command; its packages and its service.
    assert {location.partition(":")[0] for location in found} == {
        "plugins/module_utils/docker/podman.py",
        "plugins/plugin_utils/desired/docker_engine.py",
    }


def test_roles_use_the_modules_of_community_docker_that_are_listed_and_never_its_command() -> None:
    used: dict[str, set[str]] = {}
    for path in (ROOT / "roles").glob("*/*/*.yml"):
        text = path.read_text(encoding="utf-8")
        for module in re.findall(r"^\s*(?:- )?community\.docker\.(\w+):", text, re.MULTILINE):
            used.setdefault(module, set()).add(path.relative_to(ROOT / "roles").parts[0])
        assert not re.search(r"^\s*(argv: \[|cmd: |- )docker\b", text, re.MULTILINE), path
    assert used == MODULES
