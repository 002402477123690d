# SPDX-License-Identifier: GPL-3.0-or-later
"""The host keys that this machine's ssh knows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

_SSH_PORT = "22"
_LIMIT_S = 30.0


def known_keys(arguments: Sequence[str]) -> list[str]:
    """Return a host's keys, `type key`; none where ssh would ask the user.

    @cert-authority lines are ignored.

    Args:
        arguments: of ssh, the host last.
    """
    settings: dict[str, str] = {}
    for line in _run(["ssh", "-G", *arguments]).splitlines():
        name, _, value = line.partition(" ")
        settings.setdefault(name, value)
    port = settings.get("port", _SSH_PORT)
    name = settings.get("hostkeyalias") or settings.get("hostname", "")
    if port != _SSH_PORT and not settings.get("hostkeyalias"):
        name = f"[{name}]:{port}"
    files = f"{settings.get('userknownhostsfile', '')} {settings.get('globalknownhostsfile', '')}".split()
    found = []
    for file in map(os.path.expanduser, files):
        if os.path.isfile(file):
            for line in _run(["ssh-keygen", "-F", name, "-f", file]).splitlines():
                words = line.split()
                if len(words) >= 3 and not line.startswith(("#", "@")):
                    found.append(" ".join(words[1:3]))
    return list(dict.fromkeys(found))


def _run(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:  # a `Match exec` in the user's ssh_config hangs
        return ""
    return done.stdout if done.returncode == 0 else ""
