# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of the node itself: users, distribution, disk, shells, and the limits of its Docker daemon.

They come from files and system calls; no program is run.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import shutil
import socket
import struct
from typing import Any, Sequence

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import User

_PATH = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin"
_CAP_SYS_RESOURCE = 24
_FILES_NEED = 2**20
"""Bytes that the files of a cluster of some thousand nodes need."""


def user() -> User:
    """Return the user that this process runs as: name, uid, home, shell, root."""
    uid = os.geteuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return {
            "name": str(uid),
            "uid": uid,
            "home": os.environ.get("HOME", ""),
            "shell": "",
            "root": uid == 0,
        }
    return {
        "name": entry.pw_name,
        "uid": uid,
        "home": entry.pw_dir,
        "shell": entry.pw_shell,
        "root": uid == 0,
    }


def login_user() -> dict[str, Any]:
    """Return the user who logged in (SUDO_USER under sudo): name, uid, home."""
    try:
        entry = pwd.getpwnam(os.environ["SUDO_USER"])
    except KeyError:
        current = user()
        return {"name": current["name"], "uid": current["uid"], "home": current["home"]}
    return {"name": entry.pw_name, "uid": entry.pw_uid, "home": entry.pw_dir}


def groups(*names: str) -> dict[str, Any]:
    """Return the id of each group; None for one that does not exist."""
    return {name: _gid(name) for name in names}


def distribution(os_release: str) -> dict[str, str]:
    """Return id, version and name from the text of /etc/os-release."""
    pairs = dict(line.partition("=")[::2] for line in os_release.splitlines())
    values = {key.strip(): value.strip().strip("\"'") for key, value in pairs.items()}
    return {
        "id": values.get("ID", "linux"),
        "version": values.get("VERSION_ID", ""),
        "name": values.get("PRETTY_NAME") or values.get("NAME", "Linux"),
    }


def disk(path: str) -> dict[str, Any]:
    """Return total and free bytes of the file system of `path`, which need not exist.

    As in df, the blocks reserved for root are not free.
    """
    existing = path or "/"
    while not os.path.exists(existing) and existing != "/":
        existing = os.path.dirname(existing)
    usage = shutil.disk_usage(existing)
    return {"path": path, "total": usage.total, "free": usage.free}


def file_system_type(path: str, mountinfo: str) -> str:
    """Return the type of the file system that a path lies on, such as ext4 or nfs4; "" if unknown.

    Args:
        path: absolute, and without links.
        mountinfo: the text of /proc/self/mountinfo.
    """
    found, longest = "", -1
    for line in mountinfo.split("\n"):
        mount, _, source = line.partition(" - ")
        fields, kind = mount.split(" "), source.partition(" ")[0]
        if len(fields) < 6 or not kind:
            continue
        # The kernel writes spaces in names as octal numbers.
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), fields[4]).rstrip("/")
        # Of several mounts on one directory, the last one hides the others.
        if len(point) >= longest and (path + "/").startswith(point + "/"):
            found, longest = kind, len(point)
    return found


def not_writable(directory: str) -> str:
    """Return why a directory, or its nearest existing parent, cannot be written: read-only, full, forbidden.

    Returns "" if it can.
    """
    existing = directory
    while not os.path.isdir(existing) and existing != "/":
        existing = os.path.dirname(existing)
    usage = os.statvfs(existing)
    if usage.f_flag & os.ST_RDONLY:
        return "read-only"
    # Root may use the reserved blocks. File systems without a fixed number of inodes report 0.
    blocks, inodes = (usage.f_bfree, usage.f_ffree) if os.geteuid() == 0 else (usage.f_bavail, usage.f_favail)
    if blocks * usage.f_frsize < _FILES_NEED or (usage.f_files and not inodes):
        return "full"
    return "" if os.access(existing, os.W_OK | os.X_OK) else "forbidden"


def shared_memory(path: str = "/dev/shm") -> int:  # noqa: S108  # read only
    """Return the size of the node's shared memory in bytes; 0 if there is none."""
    return shutil.disk_usage(path).total if os.path.isdir(path) else 0


def installed(program: str) -> bool:
    """Return whether a program is in one of the usual directories."""
    return shutil.which(program, path=_PATH) is not None


def read_text(path: str) -> str:
    """Return a file's text; "" if it does not exist or may not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def read_json(path: str) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is none, or it cannot be read."""
    try:
        found = json.loads(read_text(path))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def daemon_pid(docker_socket: str, proc: str = "/proc", programs: Sequence[str] = ("dockerd",)) -> int:
    """Return the process id of the Docker daemon; 0 if none is found.

    The kernel reports which process listens on the socket. With socket activation that is systemd; then the
    first process called dockerd counts.

    Args:
        docker_socket: path of the engine's socket.
        proc: where procfs is.
        programs: names of programs that may serve the socket, the daemon's first.
    """
    pid = _listener(docker_socket)
    if _command(proc, pid) in programs:
        return pid
    others = (int(entry) for entry in sorted(_list(proc)) if entry.isdigit())
    return next((pid for pid in others if _command(proc, pid) == programs[0]), 0)


def is_paused(pid: int) -> bool:
    """Return whether a process is stopped, by SIGSTOP or a debugger."""
    state = read_text("/proc/{0}/stat".format(pid)).rpartition(")")[2].split()
    return state[:1] in (["T"], ["t"])


def daemon_config(pid: int, proc: str = "/proc") -> str:
    """Return the path of the configuration file of the daemon with this process id."""
    words = read_text("{0}/{1}/cmdline".format(proc, pid)).split("\0") if pid else []
    for position, word in enumerate(words):
        name, _, value = word.lstrip("-").partition("=")
        if name == "config-file":
            return value or words[position + 1]
    return "/etc/docker/daemon.json"


def memlock(pid: int, proc: str = "/proc") -> dict[str, Any]:
    """Return the limit of locked memory of a process: hard (bytes, -1 unlimited), raise_allowed.

    `raise_allowed`: its containers may get an unlimited one, because its own is unlimited or it has
    CAP_SYS_RESOURCE outside a user namespace (in one, as with a rootless daemon, the capability has no
    effect).

    Args:
        pid: the daemon's process id; 0 means this process.
        proc: where procfs is mounted.
    """
    directory = "{0}/{1}".format(proc, pid or "self")
    hard = hard_limit(read_text(directory + "/limits"))
    capable = effective_capability(read_text(directory + "/status"), _CAP_SYS_RESOURCE)
    mapping = read_text(directory + "/uid_map").split()
    return {
        "hard": hard,
        "raise_allowed": hard == -1 or (capable and mapping[:3] in ([], ["0", "0", "4294967295"])),
    }


def hard_limit(text: str) -> int:
    """Return the hard limit of locked memory from the text of /proc/PID/limits; 0 if unknown."""
    name = "Max locked memory"
    for line in text.splitlines():
        if line.startswith(name):
            hard = line[len(name) :].split()[1]
            return -1 if hard == "unlimited" else int(hard)
    return 0


def effective_capability(status: str, number: int) -> bool:
    """Return whether a capability is effective, from the text of /proc/PID/status."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def _gid(name: str) -> Any:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def _listener(docker_socket: str) -> int:
    """Return the process that listens on a unix socket (SO_PEERCRED); 0 if unknown."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(5)
            peer.connect(docker_socket)
            credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return 0
    return struct.unpack("3i", credentials)[0]


def _command(proc: str, pid: int) -> str:
    return read_text("{0}/{1}/comm".format(proc, pid)).strip()


def _list(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
