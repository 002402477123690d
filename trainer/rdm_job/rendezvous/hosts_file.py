# SPDX-License-Identifier: GPL-3.0-or-later
"""Adds the members' names to /etc/hosts in place, for programs that need names, and removes them again."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Sequence
from pathlib import Path

from rdm_job.rendezvous.roster import Member


def without_block(text: str, name: str) -> str:
    """Return a hosts file without a block; if the block's end is missing, only its first line is removed."""
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

    Every member gets the name ``rankN``, and its host name unless an earlier member has the same: a name
    stands for one address.

    Args:
        text: The file; an existing block of this name is replaced.
        name: The block's name.
        members: All members.
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
    """Change a file's content without replacing the file, which is a bind mount in containers.

    Raises:
        OSError: It cannot be written.
        UnicodeDecodeError: It is not a text file.
    """
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = change(file.read())
        file.seek(0)
        file.write(text)
        file.truncate()


def _marks(name: str) -> tuple[str, str]:
    return f"# BEGIN rdm-trainer rendezvous {name}", f"# END rdm-trainer rendezvous {name}"
