# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of all members in /etc/hosts, for programs that want names; in place, and taken away again."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Sequence
from pathlib import Path

from rdm_job.rendezvous.roster import Member

__all__ = ["change_in_place", "with_block", "without_block"]


def without_block(text: str, name: str) -> str:
    """Return a hosts file without the block of a name; of one whose end is missing only the first line goes.

    Args:
        text: The file.
        name: Whose block.
    """
    lines = text.splitlines(keepends=True)
    plain = [line.rstrip("\n") for line in lines]
    begin, end = _marks(name)
    if begin not in plain:
        return text
    first = plain.index(begin)
    last = plain.index(end, first) if end in plain[first:] else first
    return "".join(lines[:first] + lines[last + 1 :])


def with_block(text: str, name: str, members: Sequence[Member]) -> str:
    """Return a hosts file with a line for each member, in the order of ranks.

    Where several hosts have one name, only the first has it: a name stands for one address. Every member has
    ``rankN`` as well.

    Args:
        text: The file; a block of this name that is there already is replaced.
        name: Whose block.
        members: All of them.
    """
    kept = without_block(text, name)
    if kept and not kept.endswith("\n"):
        kept += "\n"
    named: set[str] = set()
    lines = []
    for rank, member in enumerate(members):
        names = [f"rank{rank}"]
        if member.host not in named:
            named.add(member.host)
            names.insert(0, member.host)
        lines.append(f"{member.address} {' '.join(names)}")
    begin, end = _marks(name)
    return kept + "\n".join([begin, *lines, end]) + "\n"


def change_in_place(path: Path, change: Callable[[str], str]) -> None:
    """Change a file's content, and not the file: in containers it is a bind mount.

    Args:
        path: The file.
        change: From its text to the new one.

    Raises:
        OSError: It cannot be written.
        UnicodeDecodeError: It is no text.
    """
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = change(file.read())
        file.seek(0)
        file.write(text)
        file.truncate()


def _marks(name: str) -> tuple[str, str]:
    return f"# BEGIN rdm-trainer rendezvous {name}", f"# END rdm-trainer rendezvous {name}"
