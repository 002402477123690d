# SPDX-License-Identifier: GPL-3.0-or-later
"""Which ranks see the same directory: all of a shared file system, and each node's own of a local disk."""

from __future__ import annotations

import contextlib
import secrets
import socket
from pathlib import Path

from rdm_trainer.distributed.clocks import host_identity
from rdm_trainer.distributed.collective import Collective

__all__ = ["find_leaders"]

_TOKEN = ".rdm-token-"  # noqa: S105


def find_leaders(directory: Path, collective: Collective) -> tuple[list[int], str | None]:
    """Put a token into each rank's directory, and look which ranks see it. Every rank calls this.

    Args:
        directory: Under its name on this rank; it need not exist.
        collective: All ranks.

    Returns:
        For each rank, the rank that leads those who see the same directory; and why this rank could not write
        there, None if it could or need not. Where no rank can, those of each node have a leader.
    """
    # Ranks of one node in one directory need no token.
    places = collective.gather(_place(directory))
    first = [places.index(place) for place in places]
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
        # Asked for by name: a list of the directory may be an old one on a network file system.
        seen = next(
            (
                rank
                for rank, name in enumerate(tokens)
                if name is not None and (name == written or _is_there(directory / name))
            ),
            collective.rank,
        )
    sights: list[int] = collective.gather(seen)
    if written is not None:
        with contextlib.suppress(OSError):
            (directory / written).unlink(missing_ok=True)
    return [sights[leader] for leader in first], error


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _place(directory: Path) -> tuple[str, int, int] | str:
    """Return what is equal only for two processes in the same directory of the same machine."""
    try:
        status = directory.stat()
    except OSError:
        return f"{socket.gethostname()}:{directory}"
    return host_identity(), status.st_dev, status.st_ino
