"""The configuration of the containers' ssh client, as a real client reads it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.ssh_config import ssh_client_config

ADDRESS_MAP = "".join(f"node{number} 10.20.{number // 250}.{number % 250 + 1}\n" for number in range(300))


def resolve(tmp_path: Path, config: str, target: str) -> dict[str, str]:
    """Return the settings that `ssh target` would use."""
    (tmp_path / "config").write_text(config)
    done = subprocess.run(
        ["ssh", "-F", str(tmp_path / "config"), "-G", target], capture_output=True, text=True, check=True
    )
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


@pytest.mark.parametrize("target", ["node0", "NODE0", "Node299", "10.20.0.1", "10.20.1.50"])
def test_a_node_is_reached_by_name_and_by_address(tmp_path: Path, target: str) -> None:
    settings = resolve(tmp_path, ssh_client_config(ADDRESS_MAP, 2222, "/etc/rdm/ssh"), target)
    addresses = dict(line.split() for line in ADDRESS_MAP.splitlines())
    assert settings["hostname"] == addresses.get(target.lower(), target)
    assert settings["port"] == "2222"
    assert settings["user"] == "root"
    assert settings["stricthostkeychecking"] in ("true", "yes")
    assert settings["identityfile"] == "/etc/rdm/ssh/id_ed25519"
    assert settings["userknownhostsfile"] == "/etc/rdm/ssh/known_hosts"
    assert settings["passwordauthentication"] == "no"


def test_other_hosts_are_left_to_the_images_own_configuration(tmp_path: Path) -> None:
    settings = resolve(tmp_path, ssh_client_config(ADDRESS_MAP, 2222, "/etc/rdm/ssh"), "github.com")
    assert settings["port"] == "22"
    assert "rdm" not in settings["userknownhostsfile"]


def test_a_node_whose_name_is_its_address() -> None:
    assert ssh_client_config("10.0.0.1 10.0.0.1\n", 22, "/d").count("10.0.0.1") == 1


@pytest.mark.parametrize("line", ["node1", "* 10.0.0.1", "a b c", "!a 10.0.0.1", "a 10.0.0.1;id", "-o x"])
def test_a_line_that_ssh_would_read_otherwise_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="is not a node name and an address"):
        ssh_client_config(line, 22, "/etc/rdm/ssh")


def test_a_name_is_found_as_it_is_typed_and_as_it_is_written(tmp_path: Path) -> None:
    config = ssh_client_config("GPU01 10.0.0.1\nGPU02 10.0.0.2\ngpu02 10.0.0.3\n", 22, "/d")
    found = {name: resolve(tmp_path, config, name) for name in ("GPU01", "gpu01", "Gpu01", "GPU02", "gpu02")}
    assert [one["hostname"] for one in found.values()] == ["10.0.0.1"] * 3 + ["10.0.0.2", "10.0.0.3"]
    assert {one["userknownhostsfile"] for one in found.values()} == {"/d/known_hosts"}
