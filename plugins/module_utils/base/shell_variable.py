# SPDX-License-Identifier: GPL-3.0-or-later
"""The value of a variable in each kind of shell of a node, and the line that sets it.

No shell is run: its files may start an agent or a terminal multiplexer, or wait. This module reads them in
the shell's order, with the files that a plain `.` or `source` line names. It does not evaluate conditions:
every line that sets the variable counts.
"""

from __future__ import annotations

import glob
import os
import re
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.base.host import read_text
from ansible_collections.rdm.provision.plugins.module_utils.base.shell_files import startup_files

_SOURCE = re.compile(r"(?:^|[;&{(]|then)\s*(?:\.|source)\s+[\"']?([~$/A-Za-z{][^\s;\"'&|)]*)")
_BEGIN, _END = "# BEGIN rdm-provision MY_IP (", "# END rdm-provision MY_IP ("
_DEEP = 4
_BY = "commented out by rdm-provision"

Read = Callable[[str], str]


class Line(NamedTuple):
    """A line that sets the variable.

    Attributes:
        file: its path.
        number: line number, from 1.
        value: as written, without quotes.
        own: whether the line is in one of our blocks.
        plain: whether the line does nothing else, so that it can be commented out.
    """

    file: str
    number: int
    value: str
    own: bool
    plain: bool = False


def strays(
    name: str,
    home: str,
    system: bool,
    zsh: bool,
    read: Read = read_text,
    profiles: Optional[List[str]] = None,
) -> List[Dict[str, object]]:
    """Return the lines of others that override ours, with the kinds of shell in which they do.

    Blocks of ours that are not written yet count as written.

    Args:
        name: the variable.
        home: the home of the shells' user.
        system: whether our blocks are for all users, or for this one.
        zsh: whether zsh is installed.
        read: returns a file's text; empty if there is none.
        profiles: the files that /etc/profile reads; None: those of this machine.
    """
    known = profiles if profiles is not None else sorted(glob.glob("/etc/profile.d/*.sh"))
    reader = _Reader(name, home, {file.path: file.insert for file in startup_files(system, zsh, home)}, read)
    etc = ["/etc/environment"]
    login = next(
        (one for one in (".bash_profile", ".bash_login", ".profile") if read(os.path.join(home, one))),
        ".profile",
    )
    kinds = {
        "login shells": [
            *etc,
            "/etc/profile",
            *sorted({*known, "/etc/profile.d/rdm.sh"}),
            os.path.join(home, login),
        ],
        "interactive shells and ssh commands": [
            *etc,
            "/etc/bash.bashrc",
            "/etc/bashrc",
            os.path.join(home, ".bashrc"),
        ],
    }
    if system:
        kinds["programs that PAM starts"] = etc
    if zsh:
        own = [os.path.join(home, one) for one in (".zshenv", ".zprofile", ".zshrc")]
        kinds["zsh"] = [*etc, "/etc/zsh/zshenv", "/etc/zshenv", *own]
    found: Dict[Line, List[str]] = {}
    for kind, files in kinds.items():
        lines = [line for file in files for line in reader.lines(file)]
        if lines and not lines[-1].own:
            found.setdefault(lines[-1], []).append(kind)
    return [
        {
            "file": line.file,
            "line": line.number,
            "value": line.value,
            "shells": shells,
            "plain": line.plain,
        }
        for line, shells in found.items()
    ]


def repaired(
    name: str,
    value: str,
    home: str,
    system: bool,
    zsh: bool,
    read: Read = read_text,
    profiles: Optional[List[str]] = None,
) -> Dict[str, str]:
    """Return the texts of files with the lines commented out that set the variable to another value.

    A line that does more than set the variable stays.

    Args:
        name: see strays().
        value: the right one.
        home: see strays().
        system: see strays().
        zsh: see strays().
        read: see strays().
        profiles: see strays().
    """
    texts: Dict[str, str] = {}

    def now(path: str) -> str:
        real = os.path.realpath(path)
        return texts[real] if real in texts else read(path)

    while True:
        # When the last line is commented out, the one before it takes effect.
        found = [
            one
            for one in strays(name, home, system, zsh, now, profiles)
            if one["plain"] and one["value"] != value
        ]
        if not found:
            return texts
        for one in found:
            file = str(one["file"])
            texts[os.path.realpath(file)] = _commented(now(file), int(str(one["line"])), file)


def _commented(text: str, number: int, file: str) -> str:
    """Return a file's text with a line commented out."""
    lines = text.split("\n")
    line = lines[number - 1]
    command = line.lstrip()
    # A shell requires a command between `then` and `fi`. PAM's file has no commands.
    mark = "# {0}: " if file == "/etc/environment" else ": # {0}: "
    lines[number - 1] = line[: len(line) - len(command)] + mark.format(_BY) + command
    return "\n".join(lines)


class _Reader:
    """Reads startup files."""

    def __init__(self, name: str, home: str, inserts: Dict[str, str], read: Read) -> None:
        self.sets = re.compile(
            r"(?:^|[;&{{]|then\s)\s*(?:export\s+|(?:declare|typeset)\s+-x\s+)?"
            r"{0}=(\"[^\"]*\"|'[^']*'|\$\([^)]*\)|[^\s;#]*)".format(re.escape(name))
        )
        self.plain = re.compile(
            r"\s*(?:export\s+|(?:declare|typeset)\s+-x\s+)?"
            r"{0}=(?:\"[^\"]*\"|'[^']*'|\$\([^()]*\)|[^\s;#&|\"'$`\\()]*)"
            r"(?:\s*;\s*export\s+{0})?\s*;?\s*(?:#.*)?".format(re.escape(name))
        )
        self.home = home
        self.inserts = inserts
        self.read = read

    def lines(self, file: str, above: Tuple[str, ...] = ()) -> List[Line]:
        """Return the lines that set the variable, in order, in a file and in those that it sources."""
        text = self.read(file)
        found: List[Line] = []
        inside = seen = False
        before = ""
        for number, line in enumerate(text.split("\n"), 1):
            continued, before = before.endswith("\\"), line
            if line.startswith((_BEGIN, _END)):
                inside = line.startswith(_BEGIN)
                seen = True
                # Our block may source a path that only a shell can resolve.
                found += [Line(file, number, "", True)] if inside else []
            if inside or line.lstrip().startswith("#"):
                continue
            match = self.sets.search(line)
            if match:
                plain = not continued and self.plain.fullmatch(line) is not None
                found.append(Line(file, number, match.group(1).strip("\"'"), False, plain))
            for other in map(self.path, _SOURCE.findall(line)):
                if other and other != file and other not in above and len(above) < _DEEP:
                    found += self.lines(other, (*above, file))
        insert = "" if seen else self.inserts.get(file, "")
        planned = [Line(file, 0, "", True)] if insert and (text or insert == "end") else []
        return planned + found if insert == "start" else found + planned

    def path(self, word: str) -> str:
        """Return the path that a word expands to; empty if only a shell can tell."""
        for start in ("~/", "$HOME/", "${HOME}/"):
            if word.startswith(start):
                return os.path.join(self.home, word[len(start) :])
        return word if word.startswith("/") and "$" not in word else ""
