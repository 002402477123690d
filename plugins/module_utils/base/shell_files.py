# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a variable must be set so that every kind of shell on a node has it.

| kind of shell               | reads, for all users         | reads, for one user                           |
|-----------------------------|------------------------------|-----------------------------------------------|
| anything started by PAM     | /etc/environment             | -                                             |
| login shell (sh, bash)      | /etc/profile.d/*.sh          | ~/.bash_profile, ~/.bash_login or ~/.profile  |
| interactive bash            | /etc/bash.bashrc             | ~/.bashrc                                     |
|                             | (Debian), /etc/bashrc        |                                               |
| bash of `ssh node command`  | PAM; /etc/bash.bashrc        | ~/.bashrc                                     |
| any zsh                     | /etc/zsh/zshenv, /etc/zshenv | ~/.zshenv                                     |
| any csh or tcsh             | PAM                          | ~/.tcshrc, or else ~/.cshrc                   |
| any fish                    | PAM                          | ~/.config/fish/config.fish                    |
| dash or ksh of `ssh node …` | PAM                          | nothing                                       |

Sources: the manual pages bash(1) "INVOCATION", zsh(1) "STARTUP/SHUTDOWN FILES", tcsh(1) "STARTUP AND
SHUTDOWN", fish(1), dash(1) "INVOCATION" and pam_env(8). Many .bashrc files end at once in a shell that is not
interactive, so the block stands at their start.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.local_path import HOST_NAME

READ_FOR_COMMANDS = ("bash", "zsh", "csh", "tcsh", "fish")
"""The shells that read a user's file when they run the command of `ssh node command`."""

_PLAIN_PATH = re.compile(r"~?[A-Za-z0-9_./%+-]+")


class StartupFile(NamedTuple):
    """A startup file of a shell, where a new block goes in it, and whether a missing file is created."""

    path: str
    insert: str
    create: bool


def shell_blocks(
    variables: dict[str, str],
    cluster: str,
    system: bool,
    zsh: bool,
    home: str = "~",
    state: str = "present",
    source: str = "",
    csh: bool = False,
) -> list[dict[str, Any]]:
    """Return the blocks that set the variables, as the module node_files takes them.

    A file that only some distributions have is skipped if it is missing, so the distribution does not matter.

    Args:
        variables: names and IPv4 addresses.
        cluster: names the blocks, so that several clusters can share a node.
        system: whether they are for all users (needs root) or for one.
        zsh: whether zsh is installed; then the user's file for it is created if it is missing.
        home: the one user's home.
        state: present or absent.
        source: a file that sets the variables, too. If its path contains the node's host name, nodes may
            share the home: then the block is the same on all nodes and reads the node's own file.
        csh: the same for csh.

    Raises:
        ValueError: a value is no IPv4 address.
    """
    words = {name: str(ipaddress.IPv4Address(value)) for name, value in variables.items()}
    plain = "".join("{0}={1}\n".format(*item) for item in words.items())
    export = "".join("export {0}={1}\n".format(*item) for item in words.items())
    setenv = "".join("setenv {0} {1}\n".format(*item) for item in words.items())
    fish = "".join("set -gx {0} {1}\n".format(*item) for item in words.items())
    needed_by = ""
    if HOST_NAME in source and not system:
        _require_plain(source)
        file = source.replace(HOST_NAME, '"$(uname -n)"')
        export = "[ ! -r {0} ] || {{ . {0}; export {1}; }}\n".format(file, " ".join(words))
        setenv = "set rdm_env = {0}\nif ( -r $rdm_env ) then\n{1}endif\nunset rdm_env\n".format(
            source.replace(HOST_NAME, "`uname -n`"),
            "".join("  setenv {0} `sed -n 's/^{0}=//p' $rdm_env`\n".format(name) for name in words),
        )
        fish = "set -l rdm_env {0}\nif test -r $rdm_env\n{1}end\n".format(
            source.replace(HOST_NAME, "(uname -n)"),
            "".join("  set -gx {0} (sed -n 's/^{0}=//p' $rdm_env)\n".format(name) for name in words),
        )
        needed_by = source.replace(HOST_NAME, "*")
    contents = [
        (file, plain if file.path == "/etc/environment" else export)
        for file in startup_files(system, zsh, home)
    ]
    contents += [
        (file, fish if file.path.endswith(".fish") else setenv)
        for file in other_startup_files(system, csh, home)
    ]
    return [
        {
            "path": file.path,
            "name": block_name(cluster),
            "content": content,
            "insert": file.insert,
            "create": file.create,
            "needed_by": needed_by,
            "state": state,
        }
        for file, content in contents
    ]


def source_blocks(file: str, name: str, state: str = "present") -> list[dict[str, Any]]:
    """Return the blocks by which one user's shells read a file, both at their start and at their end.

    The last one overrides what the user's own lines, such as pyenv's, do to PATH. The first one serves a
    ``.bashrc`` that ends early in a shell that is not interactive.

    Args:
        file: the file; its path contains the node's host name where nodes may share the home.
        name: names the blocks.
        state: as in shell_blocks().

    Raises:
        ValueError: a shell would read the path otherwise.
    """
    if state == "present":
        _require_plain(file)
    local = file.replace(HOST_NAME, '"$(uname -n)"')
    return [
        {
            "path": one.path,
            "name": name + (" first" if insert == "start" else ""),
            "content": "[ ! -r {0} ] || . {0}\n".format(local),
            "insert": insert,
            "create": one.create,
            "needed_by": file.replace(HOST_NAME, "*") if HOST_NAME in file else "",
            "state": state,
        }
        for one in startup_files(False, False, "~")
        for insert in (("start", "end") if one.path.endswith("/.bashrc") else ("end",))
    ]


def activation(environment: str) -> str:
    """Return the lines that put an environment first on a shell's PATH, once.

    Raises:
        ValueError: a shell would read the path otherwise.
    """
    _require_plain(environment, "python_env_directory")
    # A shell does not expand ~ within quotes.
    path = environment.replace("~/", '"$HOME"/', 1).replace(HOST_NAME, '"$(uname -n)"')
    return (
        "VIRTUAL_ENV={0}\n"
        "export VIRTUAL_ENV\n"
        'case "$PATH" in "$VIRTUAL_ENV"/bin:*) ;; *) PATH="$VIRTUAL_ENV/bin:$PATH"; export PATH ;; esac\n'
    ).format(path)


def _require_plain(path: str, what: str = "path") -> None:
    """Raise ValueError if a shell would read a path otherwise."""
    if not _PLAIN_PATH.fullmatch(path):
        raise ValueError(
            "{0!r} cannot be read by a shell: choose a {1} of letters and digits".format(path, what)
        )


def block_name(cluster: str) -> str:
    """Return the name of a cluster's blocks."""
    return "MY_IP ({0})".format(cluster)


def startup_files(system: bool, zsh: bool, home: str = "~") -> list[StartupFile]:
    """Return the startup files of sh, bash and zsh; arguments as in shell_blocks()."""
    if system:
        return [
            StartupFile("/etc/environment", "end", True),
            StartupFile("/etc/profile.d/rdm.sh", "end", True),
            StartupFile("/etc/bash.bashrc", "start", False),
            StartupFile("/etc/bashrc", "start", False),
            StartupFile("/etc/zsh/zshenv", "start", False),
            StartupFile("/etc/zshenv", "start", False),
        ]
    return [
        StartupFile(home + "/.bashrc", "start", True),
        StartupFile(home + "/.bash_profile", "start", False),
        StartupFile(home + "/.bash_login", "start", False),
        StartupFile(home + "/.profile", "start", True),
        StartupFile(home + "/.zshenv", "start", zsh),
    ]


def other_startup_files(system: bool, csh: bool = False, home: str = "~") -> list[StartupFile]:
    """Return the startup files of csh, tcsh and fish; arguments as in shell_blocks().

    Fish creates its file when it is first used. For all users, PAM sets the variables.
    """
    if system:
        return []
    return [
        StartupFile(home + "/.tcshrc", "start", False),
        StartupFile(home + "/.cshrc", "start", csh),
        StartupFile(home + "/.config/fish/config.fish", "start", False),
    ]
