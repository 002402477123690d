# SPDX-License-Identifier: GPL-3.0-or-later
"""The state file of a node. A good run writes it, so that the next one sees in one call that nothing changed.

It records the digest of each role's inputs, and the state in which everything was found afterwards. If either
differs now, the responsible role has work. The role finds the necessary changes itself, so a digest that
differs without need costs time and breaks nothing.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import grp
import hashlib
import json
import os
import re
import stat
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional
from urllib.parse import quote

from ansible_collections.rdm.provision.plugins.module_utils.base import shell_files
from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import TEMPORARY, write_whole
from ansible_collections.rdm.provision.plugins.module_utils.base.host import installed, read_json, read_text
from ansible_collections.rdm.provision.plugins.module_utils.base.local_path import local_path
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.text_blocks import BlockError, read_block
from ansible_collections.rdm.provision.plugins.module_utils.constants import LABEL_CLUSTER, LABEL_ROLE
from ansible_collections.rdm.provision.plugins.module_utils.container import etc_hosts
from ansible_collections.rdm.provision.plugins.module_utils.container.vfs import (
    Given,
    devices,
    held,
    stayed_behind,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerError
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import lost_addresses
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin import installation, networks
from ansible_collections.rdm.provision.plugins.module_utils.sriov.decision import state_of
from ansible_collections.rdm.provision.plugins.module_utils.sriov.observed_vfs import read_pf, vf_links

FILE_NAME = "state.json"
FORMER_NAME = "receipt"
"""Its name in the previous release, which this release still reads."""
WATCH = (
    "cluster",
    "vfs",
    "config_dirs",
    "job_directory",
    "system",
    "images",
    "archives",
    "users",
    "paths",
    "plugin",
)
"""The keys of a watch: see :func:`observe`."""

Found = Dict[str, Dict[str, str]]
"""Role -> an object that it manages -> its state, as text that is equal if nothing has changed."""

ARGUMENTS: Dict[str, Any] = {
    "directory": {"type": "str", "required": True},
    "worked": {"type": "list", "elements": "str", "required": True},
    "inputs": {"type": "dict", "required": True},
    "watch": {"type": "dict", "required": True},
    "hardware": {"type": "str", "required": True},
}
"""The module options for :func:`keep`."""
MISSING = "missing"
RUNNING = "running"

_FILE_ROLES = ("my_ip", "container", "hostfile")
_ROLE_OF_FILE = {"nodes": "my_ip", "env": "my_ip", os.path.join("job", "hostfile"): "hostfile"}
_ROLE_OF_LABEL = {"container": "container", "plugin": "sriov"}
_FILE_STATE = re.compile(r"mode (\d+) of (\d+:\d+)")
_READ_UP_TO = 1 << 20  # bytes; of a larger file, which is not ours, only size and time are compared


def observe(
    watch: Mapping[str, Any],
    hardware: str,
    api: DockerAPI,
    sysfs_root: str = "/sys",
    dev_root: str = "/dev",
) -> Found:
    """Return the state of everything that the roles manage.

    Args:
        watch: `cluster`, its name; `vfs`, the physical functions whose VFs it has created, each with
            the settings to compare; `config_dirs`, the directories with its files; `job_directory`, or empty;
            `system`, whether shells of all users have MY_IP; `images`, names; `archives`, paths of image
            archives on the node; `users`, who may use the engine; `paths`, other paths that must exist, by
            role; `plugin`, see :func:`installation.observe`.
        hardware: digest of the hardware that containers get.
        api: the engine.
        sysfs_root: where sysfs is.
        dev_root: where the device nodes are.

    Raises:
        DockerProblem: the engine does not answer.
    """
    found: Found = {"container": {"what the node has for containers": hardware}}
    _see_vfs(watch["vfs"], sysfs_root, found)
    jobs = local_path(watch["job_directory"])
    for directory in watch["config_dirs"]:
        _see_files(local_path(directory), jobs, found)
    if jobs:
        _note(found, "container", jobs, _mode_and_owner(jobs))
    _see_shells(watch, found)
    for path in watch["archives"]:
        _note(found, "images", path, _size_and_time(os.path.expanduser(path)))
    for name in watch["users"]:
        _note(found, "docker_engine", "the user {0}".format(name), _in_group(name))
    for role, paths in watch["paths"].items():
        for path in paths:
            _note(found, role, path, "there" if os.path.exists(path) else MISSING)
    for what, state in installation.observe(watch["plugin"]).items():
        _note(found, "sriov", what, state)
    if watch["plugin"]:
        socket = watch["plugin"]["socket"]
        lacks = ", ".join(one["Name"] for one in networks.lacking(api, socket))
        what = "the list of networks of the plugin at {0}".format(socket)
        _note(found, "sriov", what, "without {0}".format(lacks) if lacks else "whole")
    _see_engine(watch, api, found, lambda key: _rdma_devices(key, sysfs_root, dev_root))
    return found


def drift(before: Found, now: Found) -> Dict[str, List[str]]:
    """Return the changes since a state file was written, in sentences, by responsible role."""
    reasons: Dict[str, List[str]] = {}
    for role in sorted({*before, *now}):
        was, is_now = before.get(role, {}), now.get(role, {})
        gone: List[str] = []
        for what in sorted({*was, *is_now}):
            old, new = was.get(what, MISSING), is_now.get(what, MISSING)
            if old != new and not _implied(what, was, is_now, gone):
                gone += [what + os.sep] if new == MISSING else []
                reasons.setdefault(role, []).append(_sentence(what, old, new))
    for what, state in now.get("container", {}).items():
        # A container that does not run is wrong, even if it did not run before.
        if what.startswith(_CONTAINER) and what.endswith(_STATE) and state != RUNNING:
            sentence = _sentence(what, RUNNING, state)
            if sentence not in reasons.setdefault("container", []):
                reasons["container"].append(sentence)
    return reasons


def to_do(
    kept: Mapping[str, Any],
    inputs: Mapping[str, str],
    keys: Mapping[str, str],
    found: Optional[Found],
) -> Dict[str, List[str]]:
    """Return which roles have work on this node, and why, in sentences.

    Args:
        kept: the result of :func:`read`; empty for none.
        inputs: role -> digest of its inputs; empty if they are not known before it runs.
        keys: name of each ssh key -> its digest on the controller; empty for one that does not exist yet.
        found: the result of :func:`observe`; None if it failed.
    """
    if not kept:
        return {role: ["nothing is known of an earlier run"] for role in inputs}
    if found is None:
        return {role: ["the Docker Engine does not answer"] for role in inputs}
    reasons = {role: why for role, why in drift(kept["found"], found).items() if role in inputs}
    for role, digest in inputs.items():
        if not digest:
            reasons.setdefault(role, []).append("what its variables come to is only known when it runs")
        elif kept["inputs"].get(role) != digest:
            reasons.setdefault(role, []).append(_other_inputs(role, kept["inputs"].get(role), digest))
    for name, mine in keys.items() if "container" in inputs else ():
        theirs = [state for path, state in found["container"].items() if path.endswith("/ssh/" + name)]
        if not mine or not all(state.endswith(mine) for state in theirs or [""]):
            how = "another" if theirs else "missing"
            reasons.setdefault("container", []).append("the cluster's key in {0} is {1}".format(name, how))
    return reasons


def _other_inputs(role: str, before: Any, now: str) -> str:
    """Return which inputs differ, as a sentence. A digest consists of parts, the version first."""
    was, parts = str(before or "").split("-"), now.split("-")
    if len(was) != len(parts):
        return "it was made from other variables, another plan or another version"
    if was[0] != parts[0]:
        return "it was made from another version of rdm.provision"
    more = ", or other archives" if role == "images" else ""
    return "it was made from other variables or another plan{0}".format(more)


def read(config_dir: str) -> Dict[str, Any]:
    """Return the state file in a directory; empty if there is none, or it cannot be read."""
    path, former = (os.path.join(local_path(config_dir), name) for name in (FILE_NAME, FORMER_NAME))
    kept = read_json(path if os.path.exists(path) else former)
    parts = [kept.get(key) for key in ("inputs", "found", "watch")]
    if isinstance(parts[2], dict) and "functions" in parts[2]:  # its key before 0.6.0
        parts[2]["vfs"] = parts[2].pop("functions")
    fits = all(isinstance(part, dict) for part in parts) and set(kept["watch"]) == set(WATCH)
    return kept if fits and all(isinstance(states, dict) for states in kept["found"].values()) else {}


def keep(params: Mapping[str, Any], api: DockerAPI) -> bool:
    """Write the state file of this node; return whether it has one now.

    Raises:
        DockerProblem: the engine does not answer.
        NodeError: the watch does not have the right keys.
        OSError: it cannot be written.
    """
    if set(params["watch"]) != set(WATCH):
        raise NodeError("watch must have just these keys: {0}".format(", ".join(WATCH)))
    directory = local_path(params["directory"])
    if read_text(os.path.join(directory, "cluster")).strip() != params["watch"]["cluster"]:
        return False  # this node has nothing of the cluster
    found = observe(params["watch"], params["hardware"], api)
    found = renewed(read(directory), found, params["worked"])
    whole = text(params["inputs"], params["watch"], found)
    write_whole(os.path.join(directory, FILE_NAME), whole.encode(), 0o600)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, FORMER_NAME))
    return True


def renewed(kept: Mapping[str, Any], found: Found, worked: Iterable[str]) -> Found:
    """Return the states for a new state file. Those of roles that did not run come from the last one.

    Otherwise a change that somebody made meanwhile would become the right state.
    """
    before: Found = kept.get("found", {})
    return {role: found[role] if role in worked else before.get(role, found[role]) for role in found}


def text(inputs: Mapping[str, str], watch: Mapping[str, Any], found: Found) -> str:
    """Return the text of a state file."""
    return json.dumps({"inputs": inputs, "watch": watch, "found": found}, indent=1, sort_keys=True) + "\n"


# --- what is seen ------------------------------------------------------------------------------------

_CONTAINER = "the container "
_STATE = " itself"


def _see_vfs(pfs: Iterable[Any], root: str, found: Found) -> None:
    """Observe the virtual functions."""
    links = vf_links() if pfs else {}
    for pf, shows in pfs:
        card = "the network card {0}".format(pf)
        try:
            one = read_pf(pf, root, links, addresses={})
        except NodeError:
            _note(found, "sriov", card, MISSING)
            continue
        _note(found, "sriov", card, "there")
        _note(found, "sriov", "the number of VFs of {0}".format(pf), str(one.number))
        for vf in one.vfs:
            what = "VF {0} of {1}".format(vf.number, pf)
            _note(found, "sriov", what, state_of(vf, shows) if vf.pci else MISSING)


def _see_files(directory: str, jobs: str, found: Found) -> None:
    """Observe all files and directories, except those of jobs, which change while they run."""
    for role in _FILE_ROLES:
        _note(found, role, directory, _mode_and_owner(directory))
    for parent, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if os.path.join(parent, name) != jobs]
        for name in directories:
            path = os.path.join(parent, name)
            for role in _FILE_ROLES:
                _note(found, role, path, _mode_and_owner(path))
        for name in files:
            path = os.path.join(parent, name)
            inside = os.path.relpath(path, directory)
            if inside in (FILE_NAME, FORMER_NAME) or name.startswith(TEMPORARY):
                continue
            role = "container" if inside.startswith("ssh" + os.sep) else _ROLE_OF_FILE.get(inside, "")
            for one in (role,) if role else _FILE_ROLES:
                _note(found, one, path, _mode_owner_and_content(path))


def _see_shells(watch: Mapping[str, Any], found: Found) -> None:
    system = watch["system"]
    for startup in (
        *shell_files.startup_files(system, zsh=False),
        *shell_files.other_startup_files(system),
    ):
        path = os.path.realpath(os.path.expanduser(startup.path))
        try:
            with open(path, "rb") as stream:
                block = read_block(stream.read(), shell_files.block_name(watch["cluster"]))
            state = MISSING if block is None else digest(block.decode("utf-8", "replace"))
        except OSError:
            state = "no file"
        except BlockError:
            state = "broken"
        _note(found, "my_ip", "MY_IP in {0}".format(startup.path), state)
    for shell in ("zsh", "csh"):
        _note(found, "my_ip", shell, "there" if installed(shell) else MISSING)


def _see_engine(
    watch: Mapping[str, Any], api: DockerAPI, found: Found, rdma_devices: Callable[[str], Optional[str]]
) -> None:
    mine = {"label": ["{0}={1}".format(LABEL_CLUSTER, watch["cluster"])]}
    networks = api.get("/networks", filters=mine)
    for listed in api.get("/containers/json", all=True, filters=mine):
        one = api.get("/containers/{0}/json".format(listed["Id"]))
        role = _ROLE_OF_LABEL.get((one["Config"].get("Labels") or {}).get(LABEL_ROLE, ""), "container")
        name = _CONTAINER + one["Name"].lstrip("/")
        _note(found, role, name + _STATE, _state(one))
        for part, settings in _settings(one).items():
            _note(found, role, "{0} ({1})".format(name, part), digest(settings))
        nodes = etc_hosts.found(one) if role == "container" else None
        if nodes is not None:
            _note(found, role, "{0} (names of nodes)".format(name), digest(nodes))
        for network in networks:
            # The names of a VF's devices may change at a boot.
            socket = "/run/docker/plugins/{0}.sock".format(network["Driver"])
            devices_now = rdma_devices(held(socket, one, network["Name"]))
            if devices_now is not None:
                part = "RDMA devices on {0}".format(network["Name"])
                _note(found, role, "{0} ({1})".format(name, part), devices_now)
    for one in networks:
        settings = {
            key: one.get(key)
            for key in ("Name", "Id", "Driver", "Options", "IPAM", "Labels", "Internal", "EnableIPv6")
        }
        _note(found, "network", "the network {0}".format(one["Name"]), digest(_set(settings)))
    for name in watch["images"]:
        try:
            state = str(api.get("/images/{0}/json".format(quote(name, safe="/:@")))["Id"])
        except DockerError as error:
            if error.status != 404:
                raise
            state = MISSING
        _note(found, "images", "the image {0}".format(name), state)


def _rdma_devices(key: str, sysfs_root: str, dev_root: str) -> Optional[str]:
    """Return the names of a VF's RDMA devices, or why there are none; None if unknown."""
    try:
        paths = devices(Given(key), sysfs_root, dev_root)
    except NodeError as problem:
        return str(problem)
    why = stayed_behind(key, sysfs_root)
    if why:
        return why
    return None if paths is None else ", ".join(map(os.path.basename, paths)) or "none"


def _state(container: Mapping[str, Any]) -> str:
    state = container["State"]
    lost = lost_addresses(container)
    if lost:
        return "without its interface ({0})".format(", ".join(lost))
    return "paused" if state.get("Paused") else str(state["Status"])


def _settings(container: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a container's current settings, as messages name them."""
    ends = (container["NetworkSettings"].get("Networks") or {}).items()
    return {
        "image": container["Image"],
        "configuration": [_set(container["Config"]), container.get("Path"), container.get("Args")],
        "limits and devices": _set(container["HostConfig"]),
        "mounts": sorted(container.get("Mounts") or [], key=lambda mount: str(mount.get("Destination"))),
        "networks": {
            name: [end.get("NetworkID"), end.get("IPAMConfig"), end.get("IPAddress")] for name, end in ends
        },
    }


def _set(settings: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the engine's settings without unset ones.

    After a restart an engine shows an empty list where it showed null before, and another version may omit
    fields that are zero, or add them.
    """
    return {key: value for key, value in settings.items() if value}


def _note(found: Found, role: str, what: str, state: str) -> None:
    found.setdefault(role, {})[what] = state


def digest(value: Any) -> str:
    """Return a short digest of a value."""
    encoded = json.dumps(value, sort_keys=True).encode()
    return "sha256:" + hashlib.sha256(encoded).hexdigest()[:16]


def _mode_and_owner(path: str) -> str:
    try:
        now = os.stat(path)
    except OSError:
        return MISSING
    return "mode {0:04o} of {1}:{2}".format(stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid)


def _mode_owner_and_content(path: str) -> str:
    try:
        now = os.lstat(path)
        kind = _mode_and_owner(path)
        if stat.S_ISLNK(now.st_mode):
            kind += " by link {0}".format(os.readlink(path))
            now = os.stat(path)
        if not stat.S_ISREG(now.st_mode):
            return kind + ", no file"
        if now.st_size > _READ_UP_TO:
            return "{0}, {1}".format(kind, _size_and_time(path))
        with open(path, "rb") as stream:
            return "{0}, sha256:{1}".format(kind, hashlib.sha256(stream.read()).hexdigest()[:16])
    except OSError as error:
        return error.strerror or MISSING


def _size_and_time(path: str) -> str:
    try:
        now = os.stat(path)
    except OSError:
        return MISSING
    return "{0} bytes at {1}".format(now.st_size, now.st_mtime_ns)


def _in_group(user: str) -> str:
    try:
        return "in the group" if user in grp.getgrnam("docker").gr_mem else "not in the group docker"
    except KeyError:
        return "without a group docker"


def _implied(what: str, was: Mapping[str, str], now: Mapping[str, str], gone: List[str]) -> bool:
    """Return whether another sentence implies it: a container does not run, or a directory is gone."""
    if what.startswith(tuple(gone)):
        return True
    name, part, _ = what.partition(" (")
    return (
        bool(part)
        and what.startswith(_CONTAINER)
        and (now.get(name + _STATE) != RUNNING or name + _STATE not in was)
    )


def _sentence(what: str, old: str, new: str) -> str:
    if what.endswith(_STATE) and what.startswith(_CONTAINER):
        what = what[: -len(_STATE)]
    if old == MISSING:
        return "{0} was not there before".format(what)
    if new == MISSING:
        return "{0} is missing".format(what)
    if new in (installation.SILENT, installation.FOREIGN):
        return "{0} {1}".format(what, new)
    was, now = _FILE_STATE.match(old), _FILE_STATE.match(new)
    if was and now:
        differs = [
            "{0} {1}, not {2}".format(*one)
            for one in zip(("mode", "owner"), now.groups(), was.groups())
            if one[1] != one[2]
        ]
        if old[was.end() :] != new[now.end() :]:
            differs.insert(0, "content")
        return "{0} has changed: {1}".format(what, "; ".join(differs))
    if "sha256:" in old or "sha256:" in new or " bytes at " in new:
        return "{0} has changed".format(what)
    return "{0} is {1}, not {2}".format(what, new, old)
