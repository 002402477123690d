"""The keys that a look compares are those that the role container writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.node import receipt
from ansible_collections.rdm.provision.plugins.plugin_utils import receipts

KEYS = {"id_ed25519": "private\n", "ssh_host_ed25519_key": "private, too\n"}
PUBLIC = {"id_ed25519.pub": "ssh-ed25519 AAAA root\n", "ssh_host_ed25519_key.pub": "ssh-ed25519 BBBB node\n"}


@pytest.fixture
def controller(tmp_path: Path) -> Path:
    directory = tmp_path / "controller"
    directory.mkdir()
    for name, text in {**KEYS, **PUBLIC}.items():
        (directory / name).write_text(text, encoding="utf-8")
    return directory


@pytest.fixture
def found(tmp_path: Path) -> receipt.Found:
    """What is found on a node, as the role container has left it."""
    directory = tmp_path / "node" / "ssh"
    directory.mkdir(parents=True)
    written = {
        **KEYS,
        "authorized_keys": "ssh-ed25519 AAAA root\n",
        "known_hosts": "rdm-mine ssh-ed25519 BBBB node\n",
    }
    for name, text in written.items():
        (directory / name).write_text(text, encoding="utf-8")
    states = {str(path): receipt._mode_owner_and_content(str(path)) for path in directory.iterdir()}
    return {"container": states}


def why(controller: Path, found: receipt.Found) -> list[str]:
    receipts._keys.cache_clear()
    keys = receipts._keys(str(controller), "mine")
    last = {"found": found, "inputs": {"container": "same"}}
    return receipt.to_do(last, {"container": "same"}, keys, found).get("container", [])


def test_the_keys_of_this_cluster_are_no_work(controller: Path, found: receipt.Found) -> None:
    assert why(controller, found) == []


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("id_ed25519", "id_ed25519"),
        ("id_ed25519.pub", "authorized_keys"),
        ("ssh_host_ed25519_key", "ssh_host_ed25519_key"),
        ("ssh_host_ed25519_key.pub", "known_hosts"),
    ],
)
def test_another_key_is_named(controller: Path, found: receipt.Found, name: str, file: str) -> None:
    (controller / name).write_text("of somebody else\n", encoding="utf-8")
    assert why(controller, found) == [f"the cluster's key in {file} is another"]


def test_half_a_pair_is_work(controller: Path, found: receipt.Found) -> None:
    (controller / "id_ed25519.pub").unlink()
    assert len(why(controller, found)) == 2
