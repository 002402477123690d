"""The options that every verb of a cluster takes."""

from __future__ import annotations

from typing import TypedDict


class RunOptions(TypedDict, total=False):
    """How a verb runs; each option may be left out.

    Attributes:
        limit: only these nodes (Ansible's ``--limit`` pattern).
        forks: how many nodes at once; 0 for min(50, nodes).
        verbosity: ansible-playbook's number of ``-v``, for the record.
    """

    limit: str
    forks: int
    verbosity: int
