"""Who reads an archive, and what is verified of one that came from other nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible import constants
from ansible_collections.rdm.provision.plugins.action.image_archive import ActionModule


@pytest.mark.parametrize(
    ("brought", "digest"),
    [
        ({}, ""),  # its pieces were verified by a list from the controller
        ({"whole": "yes"}, "of the source"),
        ({"sha256": "as listed"}, "as listed"),
    ],
)
def test_archive_from_other_nodes_is_verified(brought: dict[str, str], digest: str) -> None:
    seen: dict[str, Any] = {}
    action: Any = ActionModule.__new__(ActionModule)
    action._connection = SimpleNamespace(_shell=SimpleNamespace(remove=lambda path: f"rm {path}"))
    action._module = lambda arguments, _variables: seen.update(arguments) or {}
    given = {"copy": "/cache/n.tar", "index": {"sha256": "of the source"}, **brought}
    action._load_brought(given, {"path": "image.tar"}, {})
    assert (seen["copy"], seen["index"]) == ("/cache/n.tar", {"sha256": digest})


@pytest.mark.parametrize(
    ("brought", "failed", "by_module", "by_controller"),
    [
        ({}, False, True, False),
        ({}, True, True, False),  # the module keeps the pieces for the next run
        ({"whole": "yes"}, True, True, True),
        ({"whole": "yes", "keep": True}, True, False, False),
        ({"keep": True}, False, False, False),
    ],
)
def test_the_module_removes_a_copy_that_it_has_loaded(
    brought: dict[str, Any], failed: bool, by_module: bool, by_controller: bool
) -> None:
    """A run that is killed after the load leaves no copy."""
    seen: dict[str, Any] = {}
    commands: list[str] = []
    action: Any = ActionModule.__new__(ActionModule)
    action._connection = SimpleNamespace(_shell=SimpleNamespace(remove=lambda path: f"rm {path}"))
    action._low_level_execute_command = commands.append
    action._module = lambda arguments, _variables: seen.update(arguments) or {"failed": failed}
    action._load_brought({"copy": "/cache/n.tar", "index": {}, **brought}, {"path": "image.tar"}, {})
    assert seen["remove_copy"] == by_module
    assert commands == (["rm /cache/n.tar && rm /cache/n.tar.have"] if by_controller else [])


@pytest.mark.parametrize(
    ("files", "read", "readers"),
    [
        (["one", "one", "one"], {"n1", "n2", "n3"}, ["n1"]),
        (["one", "other", "one"], {"n1", "n2", "n3"}, ["n1", "n2"]),
        (["one", "one", "one"], {"n2", "n3"}, ["n1", "n2", "n3"]),
        (["", "", "one"], {"n3"}, ["n3"]),
    ],
    ids=["same file", "one other file", "first node cannot read it", "two know it"],
)
def test_one_of_several_nodes_with_the_same_file_reads_an_archive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: list[str], read: set[str], readers: list[str]
) -> None:
    """Of the nodes with the same file one reads it, and the others get what is in it."""
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    seen = []

    def inspect(name: str, file: str) -> dict[str, Any]:
        def module(arguments: dict[str, Any], _variables: Any) -> dict[str, Any]:
            if arguments.get("read") is False and file:
                return {"unread": file}
            if arguments.get("index"):
                assert (arguments["index"], arguments["file"]) == ({"of": file}, file)
            elif file:
                seen.append(name)
                if name in read and "file" in arguments:
                    return {"load": name, "index": {"of": file}}
            return {"load": name}

        action: Any = ActionModule.__new__(ActionModule)
        action._module = module
        found: dict[str, Any] = action._inspect({"path": "/shared/image.tar.zst"}, {})
        return found

    found = [inspect(name, file) for name, file in zip(("n1", "n2", "n3"), files, strict=True)]
    assert found == [{"load": "n1"}, {"load": "n2"}, {"load": "n3"}]
    assert seen == readers
