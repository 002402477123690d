# SPDX-License-Identifier: GPL-3.0-or-later
"""The user's token (JWT) for slurmrestd. It is never in a configuration, command line, log or error."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pwd
import re
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rdm_job.slurm.commands import SlurmError

VARIABLE = "SLURM_JWT"
"""The environment variable that ``scontrol token`` prints."""
_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@$-]*")
HINT = "make another with scontrol token"


@dataclass(frozen=True)
class Token:
    """A token. Its text is not part of its representation."""

    user: str
    source: str
    text: str = field(repr=False)


def read(path: str, environment: Mapping[str, str]) -> Token:
    """Return the token from the environment or from a file.

    Args:
        path: ``launcher.slurm.rest_jwt``.
        environment: This process's; its ``SLURM_JWT`` takes precedence over the file.

    Raises:
        SlurmError: There is none, others can read it, or it has expired; the message does not contain it.
    """
    if VARIABLE in environment:
        return of(environment[VARIABLE], VARIABLE, time.time())
    file = Path(path)
    try:
        with file.open(encoding="utf-8") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            text = opened.read()
    except FileNotFoundError:
        raise SlurmError(
            f"There is no token for slurmrestd: write what scontrol token prints to {file}, with mode 0600, "
            f"or set {VARIABLE}."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SlurmError(f"The token for slurmrestd in {file} cannot be read: {why}.") from None
    if mode & 0o077:
        raise SlurmError(f"Others can read the token for slurmrestd in {file}: give it the mode 0600.")
    return of(text, str(file), time.time())


def of(text: str, source: str, now: float) -> Token:
    """Return the token in a text, bare or as ``scontrol token`` prints it; ``now`` in seconds since 1970.

    Raises:
        SlurmError: It holds no token, an expired one, or one without a user while this process's user has no
            name.
    """
    bare = text.strip().removeprefix(f"{VARIABLE}=")
    if _FORM.fullmatch(bare) is None:
        raise SlurmError(f"What {source} holds is no token for slurmrestd (a JWT): {HINT}.")
    claims: object = None
    part = bare.split(".")[1]
    # Slurm verifies the token. One that cannot be parsed here may still be valid.
    with contextlib.suppress(ValueError):
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    known = claims if isinstance(claims, dict) else {}
    ends = known.get("exp")
    if isinstance(ends, int | float) and ends <= now:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ends))
        raise SlurmError(f"The token for slurmrestd in {source} expired at {when}: {HINT}.")
    user = str(known.get("sun") or "")
    if _USER.fullmatch(user) is None:
        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            raise SlurmError(
                f"The token for slurmrestd in {source} does not say whose it is, and the user {os.getuid()} "
                f"has no name on this host: {HINT}."
            ) from None
    return Token(user, source, bare)
