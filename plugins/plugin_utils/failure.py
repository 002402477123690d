# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a task failed on a host, where Ansible's own message hides it or says too little."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_WRAPPERS = re.compile(r"^(?:(?:Task|Module|Action) failed: )+")
_NO_MESSAGE = (
    "non-zero return code",
    "MODULE FAILURE",
    # Of ansible-core since 2.19.
    "Module result deserialization failed",
)
# requests' words, around those of the engine.
_ENGINE = re.compile(r"\b\d{3} (?:Client|Server) Error for http\+docker://\S+ [\w ]+ \(\"(.+?)\"\)")
_LATE = re.compile(r"Timed out after (\d+) second")
_SUDO_LATE = re.compile(r"Timeout \((\d+)s\) waiting for privilege escalation prompt")
_WAITS = "a file that the shell reads at login (.bashrc, .zshenv) may wait there, or a file system hangs"
_SUDO_ASKS = (
    "sudo asks for a password there: give it with --ask-become-pass, or as ansible_become_password, "
    "encrypted with ansible-vault, or let the user do without one"
)


def reason(result: Mapping[str, Any]) -> str:
    """Return why, in one line.

    Args:
        result: of the task.
    """
    message = _WRAPPERS.sub("", " ".join(str(result.get("msg") or "").split()))
    message = _ENGINE.sub(r"\1", message)
    if late := _LATE.match(message):
        return f"it did not answer within {late[1]} s: {_WAITS}"
    if late := _SUDO_LATE.match(message):
        return f"sudo did not begin within {late[1]} s: it asks for a password, or {_WAITS}"
    if message.startswith("Missing sudo password"):
        return _SUDO_ASKS
    if message and not message.startswith(_NO_MESSAGE):
        return message
    said = str(result.get("stderr") or result.get("module_stderr") or result.get("stdout") or "")
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
    ended = f"exit code {result['rc']}" if "rc" in result else "it failed"
    return f"{ended}: {' '.join(last.split())}" if last else ended
