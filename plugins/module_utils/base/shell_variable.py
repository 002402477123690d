# SPDX-License-Identifier: GPL-3.0-or-later
"""What a variable is in each kind of shell of a node, and which line gives it that value.

Nothing is run: a shell's files may start an agent, a terminal multiplexer or a wait. They are read as the
shells do, in their order, with the files that they name in a plain `.` or `source` line. Which lines a
condition leaves out is not known: every line that sets the variable counts as one that may.
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
        file: where it is.
        number: of the line, from 1.
        value: without quotes, as it stands there.
        own: whether it is ours.
        plain: whether it does nothing else, so that a shell does without it.
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
    """Return the lines of others that win, with the kinds of shell in which they do.

    What is not written yet of our blocks counts as written.

    Args:
        name: the variable.
        home: of the user whose shells they are.
        system: whether our blocks are for all users, or for this one.
        zsh: whether a zsh is installed.
        read: returns a file's text, empty where there is none.
        profiles: the files that /etc/profile reads; those of this machine when not given.
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
    """Return the files' texts without the lines of others that give the variable another value.

    Such a line becomes a comment that keeps it. One that does more than set the variable stays.

    Args:
        name: as of strays(), like the rest.
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
        # Without the last line, the one before it wins.
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
    # A shell wants a command between `then` and `fi`; PAM's file has none.
    mark = "# {0}: " if file == "/etc/environment" else ": # {0}: "
    lines[number - 1] = line[: len(line) - len(command)] + mark.format(_BY) + command
    return "\n".join(lines)


class _Reader:
    """Reads shells' files."""

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
        """Return the lines of a file, and of those that it reads, which set the variable, in their order."""
        text = self.read(file)
        found: List[Line] = []
        inside = seen = False
        before = ""
        for number, line in enumerate(text.split("\n"), 1):
            continued, before = before.endswith("\\"), line
            if line.startswith((_BEGIN, _END)):
                inside = line.startswith(_BEGIN)
                seen = True
                # Ours may read a file of a path that only a shell knows.
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
        """Return the path that a word means to a shell; empty where only that shell knows."""
        for start in ("~/", "$HOME/", "${HOME}/"):
            if word.startswith(start):
                return os.path.join(self.home, word[len(start) :])
        return word if word.startswith("/") and "$" not in word else ""
