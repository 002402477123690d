# SPDX-License-Identifier: GPL-3.0-or-later
"""Large uploads, and a directory for them on a node, in which nobody else can make a file or a link."""

from __future__ import annotations

import os
import shlex
from typing import Any

from ansible.errors import AnsibleError

_METHOD = "ssh_transfer_method"
_IN_MEMORY = 1 << 28
"""Bytes of a file that Ansible may read into memory."""


def upload_directory(action: Any) -> str:
    """Return the directory, which is the same in every run: a later one replaces what a killed one has left.

    What no later run has replaced is removed after a week. The directory lies beside the one for Ansible's
    temporary files, where others may be able to write.

    Args:
        action: whose connection reaches the node, and which has made its temporary directory there.

    Raises:
        AnsibleError: another user has made it, or can write to it.
    """
    above = os.path.dirname(action._connection._shell.tmpdir.rstrip("/"))
    # `find` follows no link. Who may not enter it can neither read a file in it nor make one.
    private = " ".join(f"! -perm -{bits}" for bits in ("g+w", "g+x", "o+w", "o+x"))
    found = action._low_level_execute_command(
        f'd={shlex.quote(above)}/rdm-uploads-$(id -u); umask 77; mkdir "$d" 2>/dev/null; '
        f'find "$d" -prune -type d -user "$(id -u)" {private} | grep . && '
        'find "$d" -type f -mtime +7 -exec rm -f {} +',
        sudoable=False,
    )
    lines = str(found.get("stdout") or "").splitlines()
    if not lines:
        raise AnsibleError(
            f"{above}/rdm-uploads-UID on the node must be a directory that only its user can enter: "
            "remove it, or set ansible_remote_tmp to a directory of that user"
        )
    return lines[-1].strip()


def upload(connection: Any, path: str, remote: str) -> None:
    """Copy a file of any size to the node.

    When sftp and scp have failed, such as on a full disk, Ansible tries a third way, for which it reads the
    file into memory. A large file is not sent in this way unless the user has chosen it.

    Raises:
        AnsibleError: it cannot be copied.
    """
    if _may_be_read_into_memory(connection, path):
        connection.put_file(path, remote)
        return
    try:
        connection.set_option(_METHOD, "sftp")
        try:
            connection.put_file(path, remote)
        except AnsibleError:
            connection.set_option(_METHOD, "scp")
            connection.put_file(path, remote)
    finally:
        connection.set_option(_METHOD, "smart")


def _may_be_read_into_memory(connection: Any, path: str) -> bool:
    try:
        smart = connection.get_option(_METHOD) == "smart"
    except KeyError:  # it is not ssh
        return True
    return not smart or not os.path.exists(path) or os.path.getsize(path) <= _IN_MEMORY
