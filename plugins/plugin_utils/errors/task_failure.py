# SPDX-License-Identifier: GPL-3.0-or-later
"""Explain why a task failed on a host, if Ansible's own message hides it or says too little."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

_WRAPPERS = re.compile(r"^(?:(?:Task|Module|Action) failed: )+")
_NO_MESSAGE = (
    "non-zero return code",
    "MODULE FAILURE",
    # The wording of ansible-core from 2.19.
    "Module result deserialization failed",
    # Of the module command in ansible-core 2.21.
    "The command exited with a non-zero return code",
)
# The message of requests, which quotes the engine's.
_ENGINE = re.compile(r"\b\d{3} (?:Client|Server) Error for http\+docker://\S+ [\w ]+ \(\"(.+?)\"\)")
_LATE = re.compile(r"Timed out after (\d+) second")
_SUDO_LATE = re.compile(r"Timeout \((\d+)s\) waiting for privilege escalation prompt")
_WAITS = "a file that the shell reads at login (.bashrc, .zshenv) may wait there, or a file system hangs"
_SUDO_ASKS = (
    "sudo asks for a password there: give it with --ask-become-pass, or as ansible_become_password, "
    "encrypted with ansible-vault, or let the user do without one"
)
_SSH_NOISE = re.compile(
    r"(?:Failed to connect to the host via ssh|Data could not be sent to remote host[^:]*): "
)
# Ansible's message without any of ssh's: ssh exited with 255, as it does if a signal ends the program on the
# node, ssh itself, its shared connection, or sshd.
_SSH_SAID_NOTHING = re.compile(
    r"(?:Data could not be sent to remote host.*over ssh|Failed to connect to the host via ssh)[.: ]*",
    re.IGNORECASE,
)
_ENDED_WITHOUT_A_WORD = (
    "ssh to it ended without a word: its connection or the program there was killed, or sshd did not answer "
    "in time; run the same again"
)
# Ansible may choose a shim of pyenv's, which starts no Python and gives advice in several lines.
_NO_INTERPRETER = re.compile(r"^pyenv: python\S*: command not found", re.MULTILINE)
# What ssh prints after the messages of its ProxyJump or ProxyCommand.
_THROUGH_JUMP_HOST = re.compile(
    r"\s*(?:stdio forwarding failed)?\s*(?:kex_exchange_identification: [^:]*?)?\s*"
    r"Connection (?:closed|reset) by UNKNOWN port 65535"
)
# With ControlPersist, ssh drops the messages of the jump host's ssh.
_JUMP_HOST_UNTOLD = (
    "its jump host cannot be reached or does not let it through, and ssh does not say why: log in to the "
    "jump host by hand, and from there to the node"
)
_OTHER_HOST_KEY = re.compile(
    r"Offending \S+ key in (?P<file>.+?):(?P<line>\d+) .*Host key for (?P<host>\S+) has changed"
)


def reason(result: Mapping[str, Any]) -> str:
    """Return why a task failed, in one line."""
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
    output = str(result.get("stderr") or result.get("module_stderr") or result.get("stdout") or "")
    if missing := _NO_INTERPRETER.search(output):
        return f"{missing[0]}: set ansible_python_interpreter to a Python that the node has"
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "")
    ended = f"exit code {result['rc']}" if "rc" in result else "it failed"
    return f"{ended}: {' '.join(last.split())}" if last else ended


def not_reached(message: str) -> str:
    """Return why Ansible did not reach a host, in one line."""
    message = _WRAPPERS.sub("", " ".join(message.split()))
    if changed := _OTHER_HOST_KEY.search(message):
        return _other_host_key(**changed.groupdict())
    if _SSH_SAID_NOTHING.fullmatch(message):
        return _ENDED_WITHOUT_A_WORD
    message = _SSH_NOISE.sub("", message)
    if _THROUGH_JUMP_HOST.search(message):
        output = _THROUGH_JUMP_HOST.sub("", message).strip(" .:")
        if not output:
            return _JUMP_HOST_UNTOLD
        # Only this machine's ssh begins its messages with `ssh: `; all others come from the jump host.
        what = "cannot be reached" if output.startswith("ssh: ") else "does not let it through"
        return f"its jump host {what}: {output.removeprefix('ssh: ')}"
    if "Host key verification failed" in message:
        return (
            "ssh knows no key of this host: log in once by hand and compare the fingerprint it shows "
            "with the host's own; ssh then keeps the key in known_hosts"
        )
    return re.sub(r"^ssh: ", "", message).rstrip(".: ") or "no connection"


def _other_host_key(file: str, line: str, host: str) -> str:
    """Return ssh's ten-line warning of a changed host key in one line."""
    forget = shlex.join(["ssh-keygen", "-f", file, "-R", host])
    return (
        f"the ssh host key of {host} is not the one in {file}:{line}. "
        f"If the host was reinstalled: {forget}; if not, somebody else answers there"
    )
