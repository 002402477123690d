"""The files of a former container are removed with it, even if the directory has another name now."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.state.former_directory import (
    FILES,
    directory_of,
    removal,
)
from ansible_collections.rdm.provision.plugins.modules import node_files
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import desired
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables

from tests.unit.plugins.modules.running import run_module


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A directory as the roles create it, with a job's results."""
    home = tmp_path / ".rdm" / "old"
    directories = [{"path": str(home / name)} for name in ("", "ssh", "job", "jobs")]
    files = [{"path": str(home / name), "content": "x\n"} for name in FILES if name != "cluster"]
    owner_marker = {"path": str(home / "cluster"), "name": "rdm"}
    run_module(
        node_files, {"owner_marker": owner_marker, "directories": directories, "files": files, "blocks": []}
    )
    return home


def test_cluster_files_and_their_directory_are_removed(old: Path) -> None:
    plan = removal(str(old), "rdm")
    assert plan is not None
    plan.apply(None)
    assert not old.exists()


def test_files_of_jobs_and_others_stay(old: Path) -> None:
    (old / "jobs" / "tiny").mkdir()
    (old / "mine").write_text("")
    plan = removal(str(old), "rdm")
    assert plan is not None
    plan.apply(None)
    assert sorted(path.name for path in old.iterdir() if path.name[0] != ".") == ["jobs", "mine"]


def test_another_clusters_directory_is_left_alone(old: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(old)
    for directory, cluster in ((old, "other"), (link, "rdm"), (tmp_path / "no", "rdm")):
        assert removal(str(directory), cluster) is None
    assert removal("", "rdm") is None


def test_the_container_says_which_it_is() -> None:
    mounts = [("/jobs", "/jobs"), ("/h/.rdm/n1", "/etc/rdm")]
    found = {"Mounts": [{"Source": source, "Destination": at} for source, at in mounts]}
    assert directory_of(found) == "/h/.rdm/n1"
    assert directory_of({"Mounts": None}) == directory_of({}) == ""


def test_removal_covers_all_files_of_the_roles() -> None:
    none = NodeVariables((), str)
    gone = [desired(role, none, PlanEntry("n1"), absent=True) for role in ("container", "hostfile", "my_ip")]
    names = {file["path"].removeprefix("/etc/rdm/") for part in gone for file in part["files"]}
    assert names | {"cluster", "state.json", "receipt"} == set(FILES)
