# SPDX-License-Identifier: GPL-3.0-or-later
"""Validate the options of containers as the engine would.

The engine refuses an option only after the old container is gone, so their form is checked before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible.module_utils.common.text.formatters import human_to_bytes
from ansible_collections.rdm.provision.plugins.module_utils.constants import CONFIG_DIR, JOBS
from ansible_collections.rdm.provision.plugins.module_utils.container.spec import SHARED_MEMORY
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.system_directories import (
    is_system_directory,
)

OURS_IN_ENV = re.compile(r"MY_IP(_\d+)?|MASTER_ADDR")
"""Environment variables that the plan sets in the container; MY_IP_1 and so on with several rails."""

HOST_NAME_MAX = 64
"""Characters (linux/utsname.h); an engine accepts more, but then cannot start the container."""

HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A host's name that is safe in files and commands."""

OUR_MOUNTS = (CONFIG_DIR, "/job", JOBS)
"""Mount points of the cluster's own directories in the container."""

# Modes that the engine accepts after a volume's second colon.
_VOLUME_MODES = (
    *("ro", "rw", "z", "Z", "nocopy", "cached", "consistent", "delegated"),
    *("private", "rprivate", "shared", "rshared", "slave", "rslave"),
)
_EXCLUSIVE = ({"ro", "rw"}, {"z", "Z"}, {"private", "rprivate", "shared", "rshared", "slave", "rslave"})
_VOLUME_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_ULIMIT = re.compile(r"[a-z]+:-?[0-9]+(:-?[0-9]+)?")
_DEVICE = re.compile(r"/[^:]+(:/[^:]+)?(:[rwm]{1,3})?")
_CAPABILITY = re.compile(
    "ALL|(CAP_)?(AUDIT_CONTROL|AUDIT_READ|AUDIT_WRITE|BLOCK_SUSPEND|BPF|CHECKPOINT_RESTORE|CHOWN|DAC_OVERRIDE|"
    "DAC_READ_SEARCH|FOWNER|FSETID|IPC_LOCK|IPC_OWNER|KILL|LEASE|LINUX_IMMUTABLE|MAC_ADMIN|MAC_OVERRIDE|MKNOD|"
    "NET_ADMIN|NET_BIND_SERVICE|NET_BROADCAST|NET_RAW|PERFMON|SETFCAP|SETGID|SETPCAP|SETUID|SYSLOG|SYS_ADMIN|"
    "SYS_BOOT|SYS_CHROOT|SYS_MODULE|SYS_NICE|SYS_PACCT|SYS_PTRACE|SYS_RAWIO|SYS_RESOURCE|SYS_TIME|"
    "SYS_TTY_CONFIG|WAKE_ALARM)",
    re.IGNORECASE,
)
_DIRECTORY = re.compile(r"(~[A-Za-z0-9._-]*)?/[^\0-\x1f:]+|/")
_DEVICE_FORM = "write path on the node[:path in the container[:rwm]]"
_VOLUME_FORM = "write path on the node:path in the container[:ro], both absolute"


def container_problems(node: str, options: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with the values of a node's container options; their types are checked already.

    Args:
        node: inventory name.
        options: the variables that the user set, by name.
    """
    problems = [
        Problem(node, f"{name} {shown}", reason, hint)
        for name, check in _CHECKS.items()
        if options.get(name) is not None
        for shown, reason, hint in check(_typed(options[name], check))
    ]
    if options.get("container_shm_size") and options.get("container_ipc_mode") == "host":
        shown = f"container_shm_size {options['container_shm_size']}"
        reason = "has no effect with container_ipc_mode host"
        problems.append(Problem(node, shown, reason, "set only one of them"))
    return problems


def missing_over_ssh(node: str, options: Mapping[str, Any]) -> list[Problem]:
    """Return a warning for each variable of `container_env` that the container's sshd cannot pass on.

    Args:
        node: inventory name.
        options: as for :func:`container_problems`.
    """
    values = options.get("container_env")
    if not isinstance(values, Mapping) or options.get("container_sshd") is False:
        return []
    # roles/container/files/start.sh leaves these out. The value may be a secret, so it is not shown.
    reason = "has a double quote, a backslash or a newline in its value, and commands over ssh do not get it"
    hint = "use `rdm-provision exec`, which gets it, or keep the value in a file"
    return [
        Problem(node, f"container_env {name}", reason, hint)
        for name, value in values.items()
        if re.search(r'["\\\n]', str(value))
    ]


def _typed(value: Any, check: Any) -> Any:
    """Return a list for an option for which Ansible also accepts comma-separated text."""
    if check in (_volumes, _ulimits, _devices, _capabilities):
        return [str(item) for item in (value.split(",") if isinstance(value, str) else value)]
    return value


MOUNT_OPTIONS = ("volumes", "ipc_mode", "shm_size", "security_opts")
"""The container's options that decide whether SELinux restricts its mounts."""


def own_memory(shm_size: Any, ipc_mode: Any) -> int | None:
    """Return the bytes of the container's own shared memory; None if it uses the node's.

    Args:
        shm_size: a valid `container_shm_size`, or empty.
        ipc_mode: `container_ipc_mode`, or empty.
    """
    if shm_size:
        return int(human_to_bytes(str(shm_size)))
    return None if ipc_mode in (None, "host") else SHARED_MEMORY


def unlabelled_volumes(options: Mapping[str, Any]) -> list[str]:
    """Return the node's directories that SELinux, if it is enabled, may deny to the container.

    Args:
        options: the MOUNT_OPTIONS; None for those that the user has not set.
    """
    ipc_mode = options["ipc_mode"] or ("private" if options["shm_size"] else "host")
    # Docker disables labels for a container that shares the node's memory.
    if ipc_mode == "host" or any(str(one).startswith("label") for one in options["security_opts"] or []):
        return []
    volumes = (volume.split(":") for volume in _typed(options["volumes"] or [], _volumes))
    return [
        parts[0]
        for parts in volumes
        if parts[0].startswith("/") and not {"z", "Z"} & set(parts[2].split(",") if len(parts) == 3 else ())
    ]


Complaint = tuple[str, str, str]
"""The invalid part of the value, the reason, and the hint."""


def _shm_size(value: Any) -> Iterator[Complaint]:
    if value == "":
        return
    try:
        right = human_to_bytes(str(value)) > 0
    except ValueError:
        right = False
    if not right:
        yield str(value), "is not a size", "write a number with K, M, G or T, such as 64G"


def _hostname(value: Any) -> Iterator[Complaint]:
    if len(str(value)) > HOST_NAME_MAX:
        reason = f"has {len(str(value))} characters, and a host name {HOST_NAME_MAX} at most"
        yield str(value), reason, "set container_hostname to a shorter one"
    elif str(value) and not HOST_NAME.fullmatch(str(value)):
        hint = "use letters, digits, '.', '_' and '-', beginning with a letter or digit"
        yield repr(value), "is not a host name", hint


def _port(value: Any) -> Iterator[Complaint]:
    if not 0 < int(value) < 65536:
        yield str(value), "is not a port", "choose one from 1 to 65535"


def _seconds(value: Any) -> Iterator[Complaint]:
    if int(value) < 0:
        yield str(value), "is not a time", "give seconds, 0 or more"


def _env(value: Any) -> Iterator[Complaint]:
    if not isinstance(value, Mapping):
        return  # Ansible reads `A=B C=D` as a dictionary of texts
    for name, content in value.items():
        if not isinstance(name, str) or not name or re.search(r"[=\s\0]", name):
            hint = "give it a name without '=' and white space, in quotes where YAML sees something else"
            yield repr(name), "is not the name of an environment variable", hint
        elif OURS_IN_ENV.fullmatch(name):
            whose = "a node's" if name.startswith("MY_IP") else "the master's"
            hint = f"leave it out; to choose it, pin {whose} my_ip in the inventory"
            yield name, "is what the plan gives each container", hint
        elif not isinstance(content, (str, int, float)) or isinstance(content, bool):
            kind = {bool: "a truth value", type(None): "nothing"}.get(type(content), "a structure")
            hint = "say in quotes what programs shall see, such as '1', 'true' or ''"
            yield name, f"has {kind} for a value, and programs get a text", hint
        elif "\0" in str(content):
            yield name, "has a null character in its value", "take it out"


def _volumes(value: Sequence[str]) -> Iterator[Complaint]:
    seen = dict.fromkeys(OUR_MOUNTS, "the cluster's own files")
    for volume in value:
        parts = volume.split(":")
        if len(parts) not in (2, 3) or not parts[1].startswith("/"):
            yield repr(volume), "is not a mount", _VOLUME_FORM
            continue
        source, target = parts[0], parts[1].rstrip("/") or "/"
        if not (source.startswith(("/", "~")) or _VOLUME_NAME.fullmatch(source)):
            yield (
                repr(volume),
                f"mounts {source!r}, which is neither a path nor a volume's name",
                _VOLUME_FORM,
            )
        modes = parts[2].split(",") if len(parts) == 3 else []
        unknown = [mode for mode in modes if mode not in _VOLUME_MODES]
        if unknown or any(len(one.intersection(modes)) > 1 for one in _EXCLUSIVE):
            yield repr(volume), f"has the mode {parts[2]!r}", "use ro or rw, and z or Z for SELinux"
        if target == "/":
            yield repr(volume), "would hide the whole image", "mount it on a directory"
        elif target in seen:
            yield repr(volume), f"mounts on {target}, where {seen[target]} are", "choose another directory"
        else:
            seen[target] = f"those of {volume!r}"


def _ulimits(value: Sequence[str]) -> Iterator[Complaint]:
    for limit in value:
        if not _ULIMIT.fullmatch(limit):
            yield repr(limit), "is not a limit", "write name:soft:hard, such as memlock:-1:-1"


def _devices(value: Sequence[str]) -> Iterator[Complaint]:
    for device in value:
        if not _DEVICE.fullmatch(device):
            yield repr(device), "is not a device", _DEVICE_FORM


def _capabilities(value: Sequence[str]) -> Iterator[Complaint]:
    for name in value:
        if not _CAPABILITY.fullmatch(name):
            yield repr(name), "is no capability of Linux", "`man capabilities` lists them, such as IPC_LOCK"


def _job_directory(value: Any) -> Iterator[Complaint]:
    path = str(value)
    if path and not _DIRECTORY.fullmatch(path):
        hint = "give an absolute path such as /data/jobs, without ':' and line breaks"
        yield repr(path), "is not a usable directory", hint
    elif path and is_system_directory(path):
        hint = "give jobs a directory of their own, such as /data/jobs"
        yield repr(path), "is a directory of the operating system", hint


_CHECKS = {
    "job_directory": _job_directory,
    "container_job_directory": _job_directory,
    "container_hostname": _hostname,
    "container_shm_size": _shm_size,
    "container_ssh_port": _port,
    "container_stop_timeout": _seconds,
    "container_ready_timeout": _seconds,
    "container_env": _env,
    "container_volumes": _volumes,
    "container_ulimits": _ulimits,
    "container_devices": _devices,
    "container_capabilities": _capabilities,
    "sriov_capabilities": _capabilities,
}
