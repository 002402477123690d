# SPDX-License-Identifier: GPL-3.0-or-later
"""The command `ip`, asked in JSON (iproute2 4.13 or newer).

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

_PATH = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin"
_IP_TIMEOUT = 30.0  # seconds; a node with a full BGP table has a million routes


class IpMissing(Exception):  # noqa: N818  # a state of the node, not a fault
    """The `ip` command is missing or cannot answer in JSON; the text says which."""


def ip(*words: str) -> subprocess.CompletedProcess[bytes]:
    """Run `ip WORDS` to its end, whatever its status.

    Raises:
        IpMissing: there is no ip command, or it does not end.
    """
    try:
        return subprocess.run(
            ["ip", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=_IP_TIMEOUT,
            check=False,
            env={"PATH": _PATH, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise IpMissing("the ip command (package iproute2) is missing") from None
    except subprocess.TimeoutExpired:
        raise IpMissing("ip {0} took longer than {1:g} s".format(" ".join(words), _IP_TIMEOUT)) from None


def ip_json(*words: str) -> list[dict[str, Any]]:
    """Return what `ip -j WORDS` prints.

    Raises:
        IpMissing: there is no ip command, or it is too old for JSON.
    """
    done = ip("-j", *words)
    if done.returncode != 0:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise IpMissing(
            "ip -j {0} failed: {1}".format(" ".join(words), reason[0] if reason else "no reason given")
        )
    try:
        # Old versions print nothing instead of an empty list.
        return [entry for entry in json.loads(done.stdout or b"[]") if entry]
    except ValueError:
        raise IpMissing("ip has no JSON output (iproute2 is older than 4.13)") from None
