"""The key digests that node_facts compares are those of the files that the role container writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.state import state_file
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state_files import key_digests
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh import cluster_keys

NODE = ("mine", "node1", "10.0.0.1")


@pytest.fixture
def keys(tmp_path: Path) -> cluster_keys.Keys:
    return cluster_keys.make(str(tmp_path / "controller"), "mine")


@pytest.fixture
def found(tmp_path: Path, keys: cluster_keys.Keys) -> state_file.Found:
    """Return what is found on a node after the role container."""
    directory = tmp_path / "node" / "ssh"
    directory.mkdir(parents=True)
    for name, text in cluster_keys.of_node(keys, *NODE).items():
        (directory / name).write_text(text, encoding="utf-8")
    states = {str(path): state_file._mode_owner_and_content(str(path)) for path in directory.iterdir()}
    return {"container": states}


def why(digests: dict[str, str], found: state_file.Found) -> list[str]:
    last = {"found": found, "inputs": {"container": "same"}}
    return state_file.to_do(last, {"container": "same"}, digests, found).get("container", [])


def test_the_keys_of_this_cluster_are_no_work(keys: cluster_keys.Keys, found: state_file.Found) -> None:
    assert why(key_digests(keys, *NODE), found) == []


@pytest.mark.parametrize(
    ("name", "files"),
    [
        (cluster_keys.LOGIN, ["id_ed25519", "authorized_keys"]),
        (
            cluster_keys.AUTHORITY,
            ["ssh_host_ed25519_key", "ssh_host_ed25519_key-cert.pub", "known_hosts"],
        ),
    ],
)
def test_changes_by_another_key_are_named(
    tmp_path: Path, found: state_file.Found, name: str, files: list[str]
) -> None:
    (tmp_path / "controller" / name).unlink()
    others = cluster_keys.make(str(tmp_path / "controller"), "mine")
    reasons = why(key_digests(others, *NODE), found)
    assert reasons == [f"the cluster's key in {file} is another" for file in files]


def test_keys_that_are_yet_to_be_made_are_work(found: state_file.Found) -> None:
    assert len(why(key_digests(None, *NODE), found)) == len(cluster_keys.FILES)
