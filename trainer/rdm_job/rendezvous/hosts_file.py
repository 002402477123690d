# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of all members in /etc/hosts, for programs that want names; in place, and taken away again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rdm_job.rendezvous.roster import Member

__all__ = ["with_block", "without_block", "write_in_place"]

_BEGIN = "# BEGIN rdm-trainer rendezvous"
_END = "# END rdm-trainer rendezvous"


def without_block(text: str) -> str:
    """Return a hosts file without what a rendezvous wrote.

    Args:
        text: The file.
    """
    before, begin, rest = text.partition(f"{_BEGIN}\n")
    if not begin:
        return text
    return before + rest.partition(f"{_END}\n")[2]


def with_block(text: str, members: Sequence[Member]) -> str:
    """Return a hosts file with a line for each member, in the order of ranks.

    Where several hosts have one name, only the first has it: a name stands for one address. Every member has
    ``rankN`` as well.

    Args:
        text: The file; a block that is there already is replaced.
        members: All of them.
    """
    kept = without_block(text)
    if kept and not kept.endswith("\n"):
        kept += "\n"
    named: set[str] = set()
    lines = []
    for rank, member in enumerate(members):
        names = [f"rank{rank}"]
        if member.host not in named:
            named.add(member.host)
            names.insert(0, member.host)
        lines.append(f"{member.address} {' '.join(names)}\n")
    return f"{kept}{_BEGIN}\n{''.join(lines)}{_END}\n"


def write_in_place(path: Path, text: str) -> None:
    """Replace a file's content, and not the file: in containers it is a bind mount.

    Args:
        path: The file.
        text: What it shall hold.

    Raises:
        OSError: It cannot be written.
    """
    with path.open("r+") as file:
        file.write(text)
        file.truncate()
