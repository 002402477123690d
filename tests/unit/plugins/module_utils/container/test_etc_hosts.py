"""Names of nodes in a container's /etc/hosts: the container's script writes what the module expects."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.ssh_config import ssh_client_config
from ansible_collections.rdm.provision.plugins.module_utils.container.etc_hosts import block, found

SCRIPT = Path(__file__).parents[5] / "roles" / "container" / "files" / "hosts.sh"
ENGINES = "127.0.0.1\tlocalhost\n10.0.0.1\tn1\n"
NODES = "n1 10.0.0.1\nN1 10.0.0.2\ngpu-2.site.org 10.0.0.3\n10.0.0.4 10.0.0.4\n"


def written(directory: Path, address_map: str) -> str:
    """Return what the script makes of the engine's file, or of the existing one."""
    hosts, config = directory / "hosts", directory / "config"
    if not hosts.exists():
        hosts.write_text(ENGINES)
    before = hosts.stat().st_ino
    config.write_text(ssh_client_config(address_map, 22, "/etc/rdm/ssh"))
    subprocess.run(["sh", SCRIPT, hosts, config], check=True, timeout=60)
    assert hosts.stat().st_ino == before, "a mounted file cannot be replaced"
    return hosts.read_text()


def test_the_script_writes_the_block_behind_the_engines_lines(tmp_path: Path) -> None:
    expected = (
        "# BEGIN rdm-provision nodes\n10.0.0.1 n1\n10.0.0.2 N1\n10.0.0.3 gpu-2.site.org\n"
        "# END rdm-provision nodes\n"
    )
    assert block(NODES) == expected
    assert found({"HostsPath": str(tmp_path / "hosts")}) is None
    assert written(tmp_path, NODES) == ENGINES + expected
    assert found({"HostsPath": str(tmp_path / "hosts")}) == expected


def test_block_follows_the_nodes_and_other_lines_stay(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(ENGINES + block(NODES) + "10.9.9.9 mine\n")
    assert written(tmp_path, "n1 10.0.0.1\n") == ENGINES + "10.9.9.9 mine\n" + block("n1 10.0.0.1\n")


def test_correct_file_is_not_written(tmp_path: Path) -> None:
    written(tmp_path, NODES)
    (tmp_path / "hosts").chmod(0o400)
    before = (tmp_path / "hosts").stat().st_mtime_ns
    written(tmp_path, NODES)
    assert (tmp_path / "hosts").stat().st_mtime_ns == before


@pytest.mark.parametrize("text", ["", ENGINES, "# BEGIN rdm-provision nodes\n10.0.0.1 n1\n"])
def test_a_file_without_a_whole_block_has_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "hosts").write_text(text)
    assert found({"HostsPath": str(tmp_path / "hosts")}) == ""
    kept = "" if "BEGIN" in text else text
    assert written(tmp_path, NODES) == kept + block(NODES)


def test_a_container_without_a_file_of_its_own_has_no_answer() -> None:
    assert found({"HostsPath": ""}) is None
    assert found({}) is None
