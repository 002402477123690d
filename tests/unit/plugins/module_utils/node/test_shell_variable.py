"""Which line gives MY_IP its value in each kind of shell."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.node.shell_files import block_name
from ansible_collections.rdm.provision.plugins.module_utils.node.shell_variable import strays
from ansible_collections.rdm.provision.plugins.module_utils.node.text_blocks import put_block

BASH = "interactive shells and ssh commands"
OURS = "export MY_IP=192.169.16.100\n"


def block(text: str = "", *, at_start: bool = False, content: str = OURS) -> str:
    return put_block(text.encode() or None, block_name("rdm"), content, at_start).decode()


def found(files: dict[str, str], *, system: bool = True, zsh: bool = False) -> list[dict[str, Any]]:
    profiles = [path for path in files if path.startswith("/etc/profile.d/")]
    return strays("MY_IP", "/home/u", system, zsh, lambda path: files.get(path, ""), profiles)


def stray(file: str, line: int, value: str, *shells: str) -> dict[str, Any]:
    return {"file": file, "line": line, "value": value, "shells": list(shells)}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # The original tells people to write it there.
        (
            {"/home/u/.bashrc": "alias a=b\nexport MY_IP=10.0.0.9\n"},
            [stray("/home/u/.bashrc", 2, "10.0.0.9", BASH)],
        ),
        # A profile that reads it, as Debian's does.
        (
            {
                "/home/u/.bashrc": "MY_IP='10.0.0.9'",
                "/home/u/.profile": 'if a; then\n. "$HOME/.bashrc"\nfi\n',
            },
            [stray("/home/u/.bashrc", 1, "10.0.0.9", "login shells", BASH)],
        ),
        (
            {
                "/home/u/.bashrc": "source ~/env.sh # mine\n",
                "/home/u/env.sh": "\nexport MY_IP=$(hostname -I) # x\n",
            },
            [stray("/home/u/env.sh", 2, "$(hostname -I)", BASH)],
        ),
        # PAM takes the last line.
        (
            {"/etc/environment": block("A=b\n", content="MY_IP=192.169.16.100\n") + "MY_IP=10.0.0.9\n"},
            [stray("/etc/environment", 5, "10.0.0.9", BASH, "programs that PAM starts")],
        ),
        (
            {"/etc/profile.d/rdm.sh": block(), "/etc/profile.d/z.sh": "export MY_IP=10.0.0.9\n"},
            [stray("/etc/profile.d/z.sh", 1, "10.0.0.9", "login shells")],
        ),
        # Only the first of a user's profiles is read.
        ({"/home/u/.bash_profile": "true\n", "/home/u/.profile": "export MY_IP=10.0.0.9\n"}, []),
        # What ours comes after, now or when it is written.
        ({"/etc/environment": "MY_IP=10.0.0.9\n"}, []),
        ({"/etc/profile.d/a.sh": "export MY_IP=10.0.0.9\n"}, []),
        ({"/home/u/.bashrc": "# export MY_IP=10.0.0.9\necho $MY_IP\nexport NOT_MY_IP=1\n"}, []),
        ({"/home/u/.bashrc": ". ~/.bashrc\n"}, []),
        ({}, []),
    ],
)
def test_the_last_line_wins_and_is_named(files: dict[str, str], expected: list[dict[str, Any]]) -> None:
    assert found(files) == expected


def test_the_block_of_one_user_stands_first_in_a_file() -> None:
    text = "export MY_IP=10.0.0.9\n"
    at = [stray("/home/u/.bashrc", 4, "10.0.0.9", BASH)]
    assert found({"/home/u/.bashrc": block(text, at_start=True)}, system=False) == at
    assert found({"/home/u/.bashrc": text}, system=False) == [stray("/home/u/.bashrc", 1, "10.0.0.9", BASH)]
    assert found({"/home/u/.bashrc": block(text)}, system=False) == []


def test_zsh_reads_other_files() -> None:
    files = {"/home/u/.zshrc": "export MY_IP=10.0.0.9\n"}
    assert found(files) == []
    assert found(files, zsh=True) == [stray("/home/u/.zshrc", 1, "10.0.0.9", "zsh")]
