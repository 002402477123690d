# SPDX-License-Identifier: GPL-3.0-or-later
"""Detection of ranks that see the same directory: all on a shared file system, one node on a local disk."""

from __future__ import annotations

import contextlib
import secrets
import socket
from pathlib import Path

from rdm_trainer.distributed.clocks import host_identity
from rdm_trainer.distributed.collective import Collective

_TOKEN = ".rdm-token-"  # noqa: S105


def find_leaders(directory: Path, collective: Collective) -> tuple[list[int], str | None]:
    """Write a token into each rank's directory, and check which ranks see it. Every rank calls this.

    Args:
        directory: The directory's path on this rank; it need not exist.
        collective: All ranks.

    Returns:
        For each rank, the leader of the ranks that see the same directory; and why this rank could not write
        there, None if it could or did not need to. If no rank can write, each node has its own leader.
    """
    # Ranks of one node in one directory need no token.
    keys = collective.gather(_directory_key(directory))
    first = [keys.index(key) for key in keys]
    token = f"{_TOKEN}{secrets.token_hex(8)}" if first[collective.rank] == collective.rank else None
    error = None
    written = None
    if token is not None and len(set(first)) > 1:
        try:
            if directory.is_dir():
                (directory / token).touch()
                written = token
        except OSError as problem:
            error = f"{directory}: {problem.strerror}"
    tokens: list[str | None] = collective.gather(written)
    seen = collective.rank
    if token is not None:
        # Check for the name, because a listing may be stale on a network file system.
        seen = next(
            (
                rank
                for rank, name in enumerate(tokens)
                if name is not None and (name == written or _is_there(directory / name))
            ),
            collective.rank,
        )
    first_seen: list[int] = collective.gather(seen)
    if written is not None:
        with contextlib.suppress(OSError):
            (directory / written).unlink(missing_ok=True)
    return [first_seen[leader] for leader in first], error


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _directory_key(directory: Path) -> tuple[str, int, int] | str:
    """Return a key that is equal only for processes in the same directory of the same machine."""
    try:
        status = directory.stat()
    except OSError:
        return f"{socket.gethostname()}:{directory}"
    return host_identity(), status.st_dev, status.st_ino
