"""Which line sets MY_IP in each kind of shell."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.shell_files import block_name
from ansible_collections.rdm.provision.plugins.module_utils.base.shell_variable import repaired, strays
from ansible_collections.rdm.provision.plugins.module_utils.base.text_blocks import put_block

BASH = "interactive shells and ssh commands"
OURS = "export MY_IP=192.169.16.100\n"


def block(text: str = "", *, at_start: bool = False, content: str = OURS) -> str:
    return put_block(text.encode() or None, block_name("rdm"), content, at_start).decode()


def found(files: dict[str, str], *, system: bool = True, zsh: bool = False) -> list[dict[str, Any]]:
    profiles = [path for path in files if path.startswith("/etc/profile.d/")]
    return strays("MY_IP", "/home/u", system, zsh, lambda path: files.get(path, ""), profiles)


def stray(file: str, line: int, value: str, *shells: str) -> dict[str, Any]:
    return {"file": file, "line": line, "value": value, "shells": list(shells), "plain": True}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # Upstream's instructions say to write it there.
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
        # Our block comes after these, now or once it is written.
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


def retried(text: str, path: str = "/home/u/.bashrc") -> str:
    """Return a file's text with its strays repaired."""
    files = {path: text}
    texts = repaired("MY_IP", "192.169.16.100", "/home/u", True, False, lambda one: files.get(one, ""), [])
    assert set(texts) <= {path}
    return texts.get(path, text)


@pytest.mark.parametrize(
    "line",
    [
        "export MY_IP=10.0.0.9",
        "  MY_IP='10.0.0.9'; export MY_IP",
        "\tdeclare -x MY_IP=$(hostname -I | cut -d' ' -f1) # mine",
        'export MY_IP="10.0.0.9";',
    ],
)
def test_a_line_that_only_sets_it_becomes_a_comment_and_the_rest_stays(line: str) -> None:
    word = line.lstrip()
    indent = line[: len(line) - len(word)]
    text = "alias a=b\nif true; then\n{}\nfi\nno newline"
    commented = f"{indent}: # commented out by rdm-provision: {word}"
    assert retried(text.format(line)) == text.format(commented)
    assert retried(text.format(commented)) == text.format(commented)


@pytest.mark.parametrize(
    "text",
    [
        "export MY_IP=10.0.0.9 PATH=/opt/bin:$PATH\n",
        "cd /work && export MY_IP=10.0.0.9\n",
        "export A=1 \\\n  MY_IP=10.0.0.9\n",
        "export MY_IP=10.0.0.9 \\\n  A=1\n",
        "export MY_IP=$(first $(second))\n",
        "export MY_IP=192.169.16.100\n",
        "# export MY_IP=10.0.0.9\n",
    ],
)
def test_a_line_that_does_more_or_no_harm_stays(text: str) -> None:
    assert retried(text) == text


def test_the_line_that_wins_next_goes_too_and_one_that_is_right_ends_it() -> None:
    text = "MY_IP=1.1.1.1\nMY_IP=192.169.16.100\nMY_IP=2.2.2.2\nMY_IP=3.3.3.3\n"
    there = retried(text)
    assert [line.startswith(":") for line in there.splitlines()] == [False, False, True, True]


def test_the_file_of_pam_has_plain_comments() -> None:
    ours = block("A=b\n", content="MY_IP=192.169.16.100\n")
    there = retried(ours + "MY_IP=10.0.0.9\n", "/etc/environment")
    assert there == ours + "# commented out by rdm-provision: MY_IP=10.0.0.9\n"
