"""MY_IP reaches every kind of shell."""

from __future__ import annotations

import ipaddress
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.shell_files import shell_blocks
from ansible_collections.rdm.provision.plugins.modules import node_files
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.python_env import activation

from tests.unit.plugins.modules.running import run_module

MY_IP = {"MY_IP": "192.169.16.100"}


def test_my_ip_of_all_users_is_in_the_files_of_pam_and_every_shell() -> None:
    blocks = {block["path"]: block for block in shell_blocks(MY_IP, "rdm", system=True, zsh=True)}
    assert set(blocks) == {
        "/etc/environment",
        "/etc/profile.d/rdm.sh",
        "/etc/bash.bashrc",
        "/etc/bashrc",
        "/etc/zsh/zshenv",
        "/etc/zshenv",
    }
    assert blocks["/etc/environment"]["content"] == "MY_IP=192.169.16.100\n"  # PAM knows no export
    assert blocks["/etc/bash.bashrc"]["content"] == "export MY_IP=192.169.16.100\n"
    assert blocks["/etc/bash.bashrc"]["insert"] == "start"
    made = {path for path, block in blocks.items() if block["create"]}
    assert made == {"/etc/environment", "/etc/profile.d/rdm.sh"}


def test_for_one_user_only_the_home_directory_is_touched() -> None:
    blocks = shell_blocks(MY_IP, "rdm", system=False, zsh=False, home="/home/u")
    assert all(block["path"].startswith("/home/u/.") for block in blocks)
    made = {block["path"] for block in blocks if block["create"]}
    assert made == {"/home/u/.bashrc", "/home/u/.profile"}
    with_csh = shell_blocks(MY_IP, "rdm", system=False, zsh=False, csh=True, home="/home/u")
    assert {block["path"] for block in with_csh if block["create"]} == made | {"/home/u/.cshrc"}
    with_zsh = shell_blocks(MY_IP, "rdm", system=False, zsh=True, home="/home/u")
    assert {block["path"] for block in with_zsh if block["create"]} == made | {"/home/u/.zshenv"}


def test_removal_names_the_same_files() -> None:
    for system in (True, False):
        present = shell_blocks(MY_IP, "rdm", system, zsh=False)
        absent = shell_blocks({}, "rdm", system, zsh=False, state="absent")
        assert [(b["path"], b["name"]) for b in present] == [(b["path"], b["name"]) for b in absent]


@pytest.mark.parametrize("value", ["10.0.0.1; id", "$(id)", "10.0.0.1\nx", "", "10.0.0.256", "fe80::1"])
def test_only_an_address_reaches_a_file_that_a_shell_runs(value: str) -> None:
    with pytest.raises(ipaddress.AddressValueError):
        shell_blocks({"MY_IP": value}, "rdm", system=True, zsh=False)


@pytest.mark.parametrize("guard", ["", '[ -z "$PS1" ] && return\n', "case $- in *i*) ;; *) return;; esac\n"])
@pytest.mark.parametrize(
    "shell",
    [
        ["bash", "--login", "-c", "printenv MY_IP"],
        ["bash", "-i", "-c", "printenv MY_IP"],
        ["bash", "--noprofile", "-c", ". ~/.bashrc; printenv MY_IP"],  # what bash does for `ssh node command`
        ["sh", "-l", "-c", "printenv MY_IP"],
    ],
    ids=["login", "interactive", "ssh", "sh"],
)
def test_real_shells_have_my_ip(tmp_path: Path, guard: str, shell: list[str]) -> None:
    (tmp_path / ".bashrc").write_text(guard)
    (tmp_path / ".bash_profile").write_text("return\n")
    run_module(
        node_files, {"blocks": shell_blocks(MY_IP, "rdm", system=False, zsh=False, home=str(tmp_path))}
    )
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        shell, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    assert done.stdout.strip() == "192.169.16.100", done.stderr


@pytest.mark.parametrize(
    ("shell", "file"),
    [("tcsh", ".cshrc"), ("tcsh", ".tcshrc"), ("csh", ".cshrc"), ("fish", ".config/fish/config.fish")],
)
@pytest.mark.parametrize("source", ["", "~/.rdm/%n/env"], ids=["alone", "shared"])
def test_my_ip_reaches_a_command_of_another_kind_of_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, file: str, source: str
) -> None:
    """Run `shell -c command`, as sshd does. A shared home may have files of another node."""
    on(monkeypatch, tmp_path, os.uname().nodename)
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    before = "# mine\n"
    path.write_text(before)
    blocks = shell_blocks(MY_IP, "rdm", system=False, zsh=False, source=source)
    run_module(node_files, {**role("192.169.16.100"), "blocks": blocks})
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}

    def result() -> tuple[str, str]:
        done = subprocess.run(
            [shell, "-c", "printenv MY_IP"], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        return done.stdout.strip(), done.stderr

    assert result() == ("192.169.16.100", "")
    if source:
        (tmp_path / ".rdm" / os.uname().nodename / "env").unlink()
        assert result() == ("", "")
    run_module(node_files, role("", "absent"))
    assert path.read_text() == before


def on(monkeypatch: pytest.MonkeyPatch, home: Path, host: str) -> None:
    """Act as a user of a host with a shared home."""
    system = os.uname()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((system[0], host, *system[2:])))


def role(address: str, state: str = "present") -> dict[str, Any]:
    """Return the arguments of node_files in the role my_ip without root."""
    content = {"content": f"MY_IP={address}\n"} if state == "present" else {}
    variables = {"MY_IP": address} if state == "present" else {}
    return {
        "owner_marker": {"path": "~/.rdm/%n/cluster", "name": "rdm"},
        "directories": [{"path": "~/.rdm/%n", "state": state}],
        "files": [{"path": "~/.rdm/%n/env", "state": state, **content}],
        "blocks": shell_blocks(variables, "rdm", False, zsh=False, state=state, source="~/.rdm/%n/env"),
    }


def test_nodes_with_a_shared_home_have_their_own_my_ip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = {"a": "192.169.16.100", "b.example": "192.169.16.101"}
    before = "# mine\n"
    (tmp_path / ".bashrc").write_text(before)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for host, address in addresses.items():
        on(monkeypatch, tmp_path, host)
        assert run_module(node_files, role(address))["changed"]
    for host, address in addresses.items():
        on(monkeypatch, tmp_path, host)
        assert not run_module(node_files, role(address))["changed"], "one node undoes what another wrote"
        (bin_ / "uname").write_text(f"#!/bin/sh\necho {host}\n")
        (bin_ / "uname").chmod(0o755)
        env = {"HOME": str(tmp_path), "PATH": f"{bin_}:{os.environ['PATH']}"}
        # A login shell would set another PATH, with another uname.
        for shell in (["bash", "-ic", "printenv MY_IP"], ["sh", "-ec", ". ~/.profile; printenv MY_IP"]):
            output = subprocess.run(shell, env=env, capture_output=True, text=True)
            assert output.stdout.strip() == address, (host, shell, output.stderr)
    on(monkeypatch, tmp_path, "a")
    run_module(node_files, role("", "absent"))
    assert not (tmp_path / ".rdm" / "a").exists()
    on(monkeypatch, tmp_path, "b.example")
    assert not run_module(node_files, role(addresses["b.example"]))["changed"], (
        "the other node's went with it"
    )
    run_module(node_files, role("", "absent"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".bashrc", "bin"]
    assert (tmp_path / ".bashrc").read_text() == before


def activated(environment: str, state: str = "present") -> dict[str, Any]:
    """Return the arguments of node_files in the role python_env."""
    return {
        "owner_marker": {"path": "~/.rdm/%n/cluster", "name": "rdm"},
        "directories": [{"path": "~/.rdm/%n", "state": state}],
        **activation(environment, "~/.rdm/%n/activate", "rdm", state),
    }


@pytest.mark.parametrize("guard", ["", "case $- in *i*) ;; *) return;; esac\n"], ids=["", "guarded"])
def test_an_environment_is_active_in_every_kind_of_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    """Even if `.bashrc` puts another Python first, as with pyenv, and returns early, as Debian's does."""
    on(monkeypatch, tmp_path, os.uname().nodename)
    for name in ("mine", "pyenv"):
        program = tmp_path / name / "bin" / "python"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho {name}\n")
        program.chmod(0o755)
    bashrc = f'{guard}PATH="$HOME/pyenv/bin:$PATH"\n'
    profile = '[ -z "$BASH" ] || . ~/.bashrc\n'
    (tmp_path / ".bashrc").write_text(bashrc)
    (tmp_path / ".profile").write_text(profile)
    assert run_module(node_files, activated("~/mine"))["changed"]
    assert not run_module(node_files, activated("~/mine"))["changed"]
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    # The last one is how bash starts for `ssh node command`.
    for shell in (["bash", "-lc"], ["bash", "-ic"], ["bash", "-lic"], ["sh", "-lc"], ["bash", "-c"]):
        first = ". ~/.bashrc; " if shell == ["bash", "-c"] else ""
        result = subprocess.run(
            [*shell, f"{first}python; echo $VIRTUAL_ENV"],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.stdout == f"mine\n{tmp_path}/mine\n", (shell, result.stderr)
    run_module(node_files, activated("~/mine", "absent"))
    assert (tmp_path / ".bashrc").read_text() == bashrc
    assert (tmp_path / ".profile").read_text() == profile
    assert not (tmp_path / ".rdm" / os.uname().nodename).exists()


@pytest.mark.parametrize("path", ["/opt/$(id)", "/opt/my env", "/opt/a;id", "~/`id`"])
def test_an_environment_whose_path_a_shell_would_read_otherwise_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="cannot be read by a shell"):
        activation(path, "~/.rdm/%n/activate", "rdm")


def test_a_path_that_a_shell_would_read_otherwise_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be read by a shell"):
        shell_blocks(MY_IP, "rdm", False, zsh=False, source="~/$(id)/%n/env")
