# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the commands of iproute2; `ip` prints JSON since version 4.13.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

_PATH = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin"
_TIMEOUT_S = 30.0  # a node with a full BGP table has a million routes


class IpMissing(Exception):  # noqa: N818  # a state of the node, not a fault
    """A command is missing, hangs or cannot print JSON; the text says which."""


def iproute2(command: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command such as `ip`; return its result, whatever its exit status.

    Raises:
        IpMissing: there is no such command, or it does not end.
    """
    try:
        return subprocess.run(
            [command, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
            env={"PATH": ":".join(filter(None, [os.environ.get("PATH"), _PATH])), "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise IpMissing("the {0} command (package iproute2) is missing".format(command)) from None
    except subprocess.TimeoutExpired:
        raise IpMissing(
            "{0} {1} took longer than {2:g} s".format(command, " ".join(words), _TIMEOUT_S)
        ) from None


def ip_json(*words: str) -> list[dict[str, Any]]:
    """Return what `ip -j WORDS` prints.

    Raises:
        IpMissing: there is no ip command, or it is too old for JSON.
    """
    done = iproute2("ip", "-j", *words)
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
