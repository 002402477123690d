"""ssh between bare hosts: how ssh reads the configuration, and which keys are trusted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import sentences
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh.host_config import (
    Host,
    check,
    client_config,
    format_keys,
    merge_trusted,
    parse_keys,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh.known_hosts import known_keys
from hypothesis import given
from hypothesis import strategies as st

HOSTS = [Host("gpu1", "10.2.72.135", "ops", 22), Host("gpu2", "10.2.72.136", "", 2222)]
ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFRsdXN0IHRoaXMga2V5IGZvciB0ZXN0cyBvbmx5ISEh"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEFub3RoZXIga2V5IGZvciB0aGUgdGVzdHMgb25seSEh"
RSA = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAQ=="


def settings(config: Path, host: str) -> dict[str, str]:
    """Return the settings that ssh itself reads for a host."""
    done = subprocess.run(
        ["ssh", "-G", "-F", str(config), host], check=True, capture_output=True, text=True, timeout=60
    )
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


@pytest.mark.parametrize("name", ["gpu2", "10.2.72.136"])
def test_ssh_reads_the_way_to_a_host_by_name_and_by_address(tmp_path: Path, name: str) -> None:
    text = client_config(HOSTS, "mdx", "~/known", 15, identity="~/.rdm/%l/ssh/id_ed25519")
    (tmp_path / "config").write_text(text)
    found = settings(tmp_path / "config", name)
    assert (found["hostname"], found["port"], found["hostkeyalias"]) == ("10.2.72.136", "2222", "gpu2")
    assert found["identityfile"] == "~/.rdm/%l/ssh/id_ed25519"
    assert found["stricthostkeychecking"] in ("true", "yes")
    assert found["serveraliveinterval"] == "15"
    assert "proxyjump" not in found
    assert settings(tmp_path / "config", "gpu1")["user"] == "ops"
    # It has no settings for other hosts.
    assert settings(tmp_path / "config", "gpu10")["stricthostkeychecking"] == "ask"


def test_the_controller_goes_through_the_jump_host(tmp_path: Path) -> None:
    jump = "ops@login.example.com:2200"
    (tmp_path / "config").write_text(client_config(HOSTS, "mdx", "~/known", 0, jump=jump))
    assert settings(tmp_path / "config", "gpu1")["proxyjump"] == jump


@given(st.integers(min_value=1, max_value=300))
def test_every_host_of_a_large_cluster_is_in_the_part_for_all(count: int) -> None:
    hosts = [Host(f"n{index}", f"10.0.{index // 250}.{index % 250}") for index in range(count)]
    lines = client_config(hosts, "c", "~/known", 0).splitlines()
    named = [name for line in lines if line.startswith("Host ") for name in line.split()[1:]]
    assert all(named.count(name) == 2 for host in hosts for name in (host.name, host.address))
    assert max(map(len, lines)) < 1024 * 2


@pytest.mark.parametrize(
    ("hosts", "jump", "keep_alive", "message"),
    [
        (
            HOSTS,
            "login -o ProxyCommand=x",
            15,
            "ssh_config_jump_host 'login -o ProxyCommand=x' is no host to go",
        ),
        (HOSTS, "", -1, "ssh_config_keep_alive -1 is no such interval"),
        ([HOSTS[0]._replace(user="a b")], "", 15, "gpu1: ssh_config_user 'a b' is no name of a user"),
        ([HOSTS[0]._replace(port=70000)], "", 15, "gpu1: ssh_config_port 70000 is no port"),
        ([HOSTS[0]._replace(identity="/a b")], "", 15, "'/a b' cannot be written into ssh's configuration"),
    ],
)
def test_value_that_ssh_could_misread_is_refused(
    hosts: list[Host], jump: str, keep_alive: int, message: str
) -> None:
    (line,) = sentences(check(hosts, jump, keep_alive))
    assert message in line
    assert check(HOSTS, "ops@a.example:22,b", 15) == []


def test_stored_keys_are_trusted_and_new_hosts_are_added() -> None:
    known = {"gpu1": [ED25519]}
    keys, problems = merge_trusted(known, {"gpu1": [ED25519, RSA], "gpu2": [OTHER]}, "ssh_host_keys")
    assert problems == []
    assert keys == {"gpu1": [ED25519], "gpu2": [OTHER]}
    assert parse_keys(format_keys(keys), "ssh_host_keys") == (keys, [])


def test_another_key_and_an_unknown_host_are_refused() -> None:
    _, problems = merge_trusted({"gpu1": [ED25519]}, {"gpu1": [OTHER], "gpu2": []}, "ssh_host_keys")
    other, unknown = sentences(problems)
    assert other.startswith("gpu1: its host key of type ssh-ed25519 is SHA256:")
    assert "if the host was reinstalled, remove its lines there" in other
    assert unknown.startswith("gpu2: its host key is not in the known_hosts of this machine: log in once")


@pytest.mark.parametrize("line", ["gpu1", "gpu1 ssh-ed25519", "gpu1 ssh-ed25519 no-base64!", "gpu1 rsa AAAA"])
def test_a_line_that_names_no_key_is_refused(line: str) -> None:
    _, problems = parse_keys(f"# ours\n{line}\n", "ssh_host_keys")
    assert "ssh_host_keys:2 names no host key" in sentences(problems)[0]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("10.2.72.135", []),
        ("[10.2.72.135]:2222", ["-p", "2222"]),
        ("gpu1", ["-o", "HostKeyAlias=gpu1", "-p", "2222"]),
    ],
)
def test_the_keys_by_which_this_machine_s_ssh_knows_a_host(
    tmp_path: Path, name: str, options: list[str]
) -> None:
    file = tmp_path / "known"
    file.write_text(f"@cert-authority * {OTHER}\n{name} {ED25519}\n{name} {RSA}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", file], check=True, capture_output=True, timeout=60)
    where = ["-F", "/dev/null", "-o", f"UserKnownHostsFile={file}", "-o", "GlobalKnownHostsFile=/dev/null"]
    assert known_keys([*where, *options, "10.2.72.135"]) == [ED25519, RSA]
    assert known_keys([*where, "10.2.72.136"]) == []
