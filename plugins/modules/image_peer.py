#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""rdm.provision.image_peer: start, query and stop a node's peer, which fetches or serves an image archive."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_peer
short_description: Take part while an image archive goes from node to node
version_added: 0.3.0
description:
  - Starts and ends the process in which a node fetches the pieces of an archive from others, and serves those
    that it has. M(rdm.provision.image_distribution) calls it.
  - The process ends when all nodes have what they need, and by itself when no node requests anything.
options:
  state:
    description:
      - V(source) is the node that has the archive, V(joined) one that fetches it.
      - V(reported) returns how far all are, and is for the source. V(stopped) ends the process.
      - V(absent) ends the process of any run, and removes what has arrived.
    type: str
    choices: [source, joined, reported, stopped, absent]
    required: true
  key:
    description: What the node's files for this archive are called.
    type: str
    required: true
  cache_dir:
    description: As for M(rdm.provision.image_archive); pieces are in C(peers) below it.
    type: str
    default: ""
  path:
    description: The archive at the source.
    type: path
  files:
    description: Files below the directory O(path) and their bytes, which the source serves as one archive.
    type: dict
  image:
    description:
      - An image of the source's engine, which the source saves and serves instead of O(path).
      - With O(state=stopped), its archive is removed even if the process was killed.
    type: str
    default: ""
  unpack:
    description:
      - Whether the source serves a decompressed copy of O(path), so that nodes can leave out layers. If there
        is no room for it, it serves O(path).
    type: bool
    default: false
  sha256:
    description: What the digest of the archive must be, where the source reads it.
    type: str
    default: ""
  pieces:
    description: The list of its pieces, where the controller writes the archive to the source meanwhile.
    type: str
  digest:
    description: The digest of the list of pieces.
    type: str
    default: ""
  left_out:
    description: Members of the archive that the node's engine has already.
    type: list
    elements: str
    default: []
  index:
    description: What is in the archive; the node leaves out what its engine has already.
    type: dict
  name:
    description: Name of the node.
    type: str
    default: ""
  network:
    description: Network in which the source has the address that it listens at; empty takes that of ssh.
    type: str
    default: ""
  port:
    description: Port to listen on.
    type: int
    default: 0
  source:
    description: Address and port of the source.
    type: list
    elements: str
    default: []
  token:
    description: What all requests of this run carry.
    type: str
    default: ""
  bandwidth:
    description: Megabits a second that the node sends at most; 0 is without a bound.
    type: float
    default: 0
  lease:
    description: Seconds without word from others after which the process ends by itself.
    type: float
    default: 30
attributes:
  check_mode:
    support: none
    description: It is not called in check mode.
  diff_mode:
    support: none
    description: What it writes is removed when the image has been loaded.
  idempotent:
    support: none
    description: Each run has processes of its own.
author: The rdm-provision developers
"""

EXAMPLES = r"""
- name: Fetch an archive from other nodes
  rdm.provision.image_peer:
    state: joined
    key: 5d41402abc4b2a76b9719d911017c592
    digest: "{{ digest }}"
    name: "{{ inventory_hostname }}"
    source: ["10.0.0.1", "7077"]
    token: "{{ token }}"
"""

RETURN = r"""
problem:
  description: Why the node cannot take part, in one sentence; empty when it can.
  returned: always
  type: str
address: {description: Where it listens., returned: for O(state=source), type: str}
port: {description: Port on which it listens., returned: for O(state=source) and O(state=joined), type: int}
stored:
  description: Bytes of the archive that the node copies from its engine's store, and does not fetch.
  returned: for O(state=joined)
  type: int
digest: {description: The digest of the list of pieces., returned: for O(state=source), type: str}
index: {description: What is in the archive., returned: for O(state=source), type: dict}
nodes: {description: How far each node is., returned: for O(state=reported), type: dict}
sent: {description: Bytes that the source has sent., returned: for O(state=reported), type: int}
complete: {description: All pieces that the node needs are there., returned: for O(state=stopped), type: bool}
path:
  description: The file with the pieces, or the decompressed copy that the source serves.
  returned: for O(state=joined) and O(state=stopped), and by a source with such a copy
  type: str
"""

import contextlib
import hashlib
import http.client
import ipaddress
import json
import os
import socket
import stat
import time
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple
from urllib.parse import quote

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.host import disk
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import echo
from ansible_collections.rdm.provision.plugins.module_utils.base.iproute2 import IpMissing, ip_json
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import size_text
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerProblem
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import (
    blob_dir,
    image_dir,
    image_store,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_cache import (
    cached_index,
    default_cache_dir,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import ArchiveIndex
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_stream import (
    Hashing,
    chunks,
    decompressed,
    explained,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.engine_layers import (
    lacking_layers,
    present_members,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.joined_files import joined_pieces
from ansible_collections.rdm.provision.plugins.module_utils.images.peer import Peer, Settings
from ansible_collections.rdm.provision.plugins.module_utils.images.peer_client import local_address, reason
from ansible_collections.rdm.provision.plugins.module_utils.images.peer_process import (
    START_S,
    TAKEN_OVER,
    end_other,
    held_by,
    os_problem,
    run_name,
    sign,
    start,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import (
    NOTED,
    PieceList,
    read_pieces,
)
from ansible_collections.rdm.provision.plugins.module_utils.network.interfaces import (
    interfaces,
    interfaces_without_ip,
    ssh_connection,
)

ARGUMENT_SPEC: Dict[str, Any] = {
    "state": {
        "type": "str",
        "choices": ["source", "joined", "reported", "stopped", "absent"],
        "required": True,
    },
    "key": {"type": "str", "required": True, "no_log": False},
    "cache_dir": {"type": "str", "default": ""},
    "path": {"type": "path"},
    "files": {"type": "dict"},
    "image": {"type": "str", "default": ""},
    "unpack": {"type": "bool", "default": False},
    "sha256": {"type": "str", "default": ""},
    # It is not secret, but too long for the system log, where Ansible writes the arguments.
    "pieces": {"type": "str", "no_log": True},
    "digest": {"type": "str", "default": ""},
    "left_out": {"type": "list", "elements": "str", "default": []},
    "index": {"type": "dict"},
    "name": {"type": "str", "default": ""},
    "network": {"type": "str", "default": ""},
    "port": {"type": "int", "default": 0},
    "source": {"type": "list", "elements": "str", "default": []},
    "token": {"type": "str", "default": "", "no_log": True},
    "bandwidth": {"type": "float", "default": 0},
    "lease": {"type": "float", "default": 30},
}

_SAVE_S = 1800
"""Seconds that an engine may stay silent while it prepares the archive of an image."""
_ANSWER_S = 40
"""Longer than the controller waits for a report, which asks a source again that only stands still."""
_ENGINE_S = 10
"""Seconds to wait for an engine that need not answer."""
_KEEP_S = 7 * 24 * 3600


def base_path(params: Dict[str, Any]) -> str:
    """Return the path prefix of a node's files for an archive, in a directory that is private to the user.

    Raises:
        NodeError: another user could put files or links there.
    """
    above = params["cache_dir"] or default_cache_dir()
    directory = os.path.join(above, "peers")
    for path in (above, directory):
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise NodeError(
                "{0} is not a directory: remove it, or set images_cache_dir to another one".format(path)
            ) from None
        _require_own(path, above=path == above)
    return os.path.join(directory, params["key"])


def _require_own(path: str, above: bool) -> None:
    """Raise NodeError if another user can replace what this one has in a directory.

    Args:
        path: of the directory.
        above: it is the parent of the private one. So it may be root's or a link, and others may write to it
            if it is sticky, as /tmp is.
    """
    user = os.geteuid()
    itself, there = os.lstat(path), os.stat(path)
    for one in (itself, there):
        if one.st_uid != user and not (above and one.st_uid == 0):
            raise NodeError(
                "{0} belongs to user {1} and not to {2}: remove it or, if its file system maps root to "
                "another user (NFS with root_squash), set images_cache_dir to a local directory".format(
                    path, one.st_uid, user
                )
            )
    shared = there.st_mode & 0o022 and not (above and there.st_mode & stat.S_ISVTX)
    if shared or not (above or stat.S_ISDIR(itself.st_mode)):
        raise NodeError(
            "{0} must be a directory that only its user {1} can write to: remove it, or set images_cache_dir "
            "to another directory".format(path, there.st_uid)
        )


def source(params: Dict[str, Any]) -> Dict[str, Any]:
    """Start to serve on this node an archive, one that is still being written, files, or an image."""
    base = base_path(params)
    saved = base + ".tar"
    with end_other(base) as lock:
        made: List[int] = []
        try:
            # This may read and write for long. If the run is killed, the next one ends this process, too.
            sign(lock, run_name(params["token"]))
            # What this node has fetched in an earlier run, when another one was the source, or has saved.
            _remove(saved, saved + NOTED)
            forget_old(os.path.dirname(base))
            if params["image"]:
                save(params["image"], saved)
                made = _version(saved)
                return serve({**params, "path": saved}, base, lock)
            if params["unpack"] and unpack(params, saved):
                made = _version(saved)
                return {**serve({**params, "path": saved}, base, lock), "path": saved}
            return serve(params, base, lock)
        except BaseException:
            if not lock.closed:
                _remove(saved, lock.name)
            elif made and made == _version(saved):  # else a later run has replaced it
                _remove(saved)
            raise


def _version(path: str) -> List[int]:
    """Return what differs between a file and one that replaces it; empty if there is none."""
    try:
        now = os.stat(path)
    except FileNotFoundError:
        return []
    return [now.st_ino, now.st_mtime_ns]


def _remove(*paths: str) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def save(image: str, path: str) -> None:
    """Save an image of the engine as an archive, in constant memory.

    Raises:
        NodeError: there is no room for it, or for the engine's copy.
        DockerProblem: the engine does not have it, does not answer, or breaks off.
        OSError: the file cannot be written.
    """
    api = DockerAPI(timeout=_SAVE_S)
    name = quote(image, safe="/:@")
    size = int(api.get("/images/{0}/json".format(name))["Size"])
    _require_room(size, os.path.dirname(path), api.get("/info"))
    _write(path, api.get_stream("/images/{0}/get".format(name)))


def unpack(params: Dict[str, Any], path: str) -> bool:
    """Decompress the archive into a file, if there is room for it twice, and return whether there is.

    An engine on the same disk may need as much again while it loads the archive.

    Raises:
        NodeError: as `cached_index`, or it has changed since then.
        OSError: the file cannot be written.
    """
    archive = params["path"]
    index = cached_index(archive, params["sha256"], params["cache_dir"] or default_cache_dir())
    if disk(os.path.dirname(path))["free"] < 2 * index.unpacked:
        return False
    _write(path, _decompress(archive, index))
    return True


def _decompress(path: str, index: ArchiveIndex) -> Iterator[bytes]:
    hasher = hashlib.sha256()
    with explained(path), open(path, "rb") as raw:
        hashing = Hashing(raw, hasher)
        with decompressed(hashing, index.compression, path) as stream:
            yield from chunks(stream)
    if hasher.hexdigest() != index.sha256:
        raise NodeError("{0} was changed while it was read".format(path))


def _write(path: str, parts: Iterable[bytes]) -> None:
    """Write a file that is private to the user."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for part in parts:
                file.write(part)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _require_room(size: int, directory: str, info: Dict[str, Any]) -> None:
    """Raise NodeError unless an image can be saved to a directory.

    Args:
        size: bytes of the image.
        directory: for its archive.
        info: the engine's. One with the classic store first copies the image to its own directory.
    """
    engine = image_dir(info)
    copies = image_store(info) == "classic" and os.path.isdir(engine)
    one_disk = copies and os.stat(engine).st_dev == os.stat(directory).st_dev
    needed = {directory: 2 * size if one_disk else size}
    if copies and not one_disk:
        needed[engine] = size
    for path, room in needed.items():
        free = disk(path)["free"]
        if room > free:
            raise NodeError(
                "saving it needs {0}, and {1} has {2} free: free some space there{3}".format(
                    size_text(room),
                    path,
                    size_text(free),
                    ", or set images_cache_dir" if path == directory else "",
                )
            )


def settings_of(params: Dict[str, Any], address: str, source: Optional[Tuple[str, int]] = None) -> Settings:
    """Return the settings of this node's peer."""
    sends = params["bandwidth"] * 1e6 / 8
    return Settings(params["name"], address, params["port"], params["token"], source, sends, params["lease"])


def serve(params: Dict[str, Any], base: str, lock: Any) -> Dict[str, Any]:
    """Start the process that serves the archive at `path`.

    Args:
        params: of the module.
        base: path prefix of this node's files for the archive.
        lock: for these files; that process gets it.
    """
    path = params["path"]
    address = source_address(params["network"])
    growing = params["pieces"] is not None
    index: Dict[str, Any] = {}
    if growing:
        pieces = PieceList.decoded(params["pieces"].encode(), params["digest"])
        until = time.monotonic() + START_S
        while not os.path.exists(path) and time.monotonic() < until:
            time.sleep(0.1)
    elif params["files"]:
        pieces = joined_pieces(path, params["files"])
        index = ArchiveIndex("none", pieces.size, "", 0, False, []).to_json()
    else:
        before = os.stat(path)
        made = cached_index(path, params["sha256"], params["cache_dir"] or default_cache_dir())
        pieces = read_pieces(path, made)
        after = os.stat(path)
        if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
            raise NodeError("{0} was changed while it was read".format(path))
        index = made.to_json()
    settings = settings_of(params, address)
    os.unlink(lock.name)
    lock.close()
    started = start(
        base,
        settings,
        lambda: Peer(settings, pieces.digest, path, pieces, growing=growing, joined=bool(params["files"])),
        path if params["image"] else "",
    )
    return {**started, "address": address, "digest": pieces.digest, "index": index}


def joined(params: Dict[str, Any]) -> Dict[str, Any]:
    """Start to fetch an archive from the source and other nodes."""
    # Before another run's process here is ended: does the source still belong to this run?
    query_source(params, "/")
    base = base_path(params)
    with end_other(base):
        os.unlink(base + ".lock")
    forget_old(os.path.dirname(base))
    host, port = params["source"]
    at = (host, int(port))
    settings = settings_of(params, local_address(at), at)
    path = base + ".tar"
    left_out = left_out_of(params["index"]) if params["index"] else tuple(params["left_out"])
    blobs = engine_blobs()
    started = start(
        base, settings, lambda: Peer(settings, params["digest"], path, left_out=left_out, blobs=blobs)
    )
    return {**started, "path": path}


def engine_blobs() -> str:
    """Return `blob_dir` of this node's engine; empty if it does not answer."""
    try:
        return blob_dir(DockerAPI(timeout=_ENGINE_S).get("/info"))
    except DockerProblem:
        return ""


def left_out_of(index: Dict[str, Any]) -> Tuple[str, ...]:
    """Return the members of an archive that this node's engine has already; none if it does not answer."""
    found = ArchiveIndex.from_json(index)
    try:
        api = DockerAPI()
        architectures = ("", api.version()["Arch"])
        images = [image for image in found.images if image.architecture in architectures]
        new = lacking_layers(api, images)
        return tuple(sorted(present_members(api, found._replace(images=images), new)))
    except DockerProblem:
        return ()


def reported(params: Dict[str, Any]) -> Dict[str, Any]:
    """Return the source's status."""
    found: Dict[str, Any] = json.loads(query_source(params, "/status"))
    return found


def query_source(params: Dict[str, Any], path: str) -> bytes:
    """Return the source's response to a request.

    Raises:
        NodeError: it does not answer, or belongs to another run by now.
    """
    host, port = params["source"]
    connection = http.client.HTTPConnection(host, int(port), timeout=_ANSWER_S)
    try:
        connection.request("GET", path, headers={"Authorization": "Bearer " + params["token"]})
        answer = connection.getresponse()
        if answer.status == 403:
            raise NodeError(TAKEN_OVER)
        return answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise NodeError(
            "the process that serves it does not answer at {0}:{1} ({2})".format(host, port, reason(error))
        ) from None
    finally:
        connection.close()


def stopped(params: Dict[str, Any]) -> Dict[str, Any]:
    """End this run's process on the node, and return its result.

    The process of a later run is left alone.
    """
    base = base_path(params)
    result: Dict[str, Any] = {"complete": False, "error": "", "problem": "it has not taken part"}
    if held_by(base)[1] not in ("", run_name(params["token"])):
        return {**result, "problem": TAKEN_OVER}
    with end_other(base, run_name(params["token"])):
        with contextlib.suppress(OSError, ValueError), open(base + ".result", encoding="utf-8") as file:
            result.update(json.load(file), problem="")
        saved = [base + ".tar"] if params["image"] else []
        for path in (base + ".result", base + ".lock", *saved):
            with contextlib.suppress(OSError):
                os.unlink(path)
    return {**result, "path": base + ".tar"}


def absent(params: Dict[str, Any]) -> Dict[str, Any]:
    """Remove what earlier runs have left of an archive on the node."""
    if not os.path.isdir(os.path.join(params["cache_dir"] or default_cache_dir(), "peers")):
        return {}
    base = base_path(params)
    with end_other(base):
        _remove(*(base + ending for ending in (".tar", ".tar" + NOTED, ".result", ".lock")))
    return {}


def source_address(network: str) -> str:
    """Return the node's address in a network, or the one to which ssh has connected."""
    if not network:
        return ssh_connection()["server"] or socket.gethostbyname(socket.gethostname())
    wanted = ipaddress.ip_network(network, strict=False)
    try:
        found = interfaces(ip_json("addr"))
    except IpMissing:
        found = interfaces_without_ip()
    for text in (one for interface in found for one in interface["addresses"]):
        address = ipaddress.ip_interface(text).ip
        if address in wanted:
            return str(address)
    raise NodeError("this node has no address in images_network {0}".format(network))


def forget_old(directory: str) -> None:
    """Remove files of earlier runs that no run has used for a week."""
    for entry in os.scandir(directory):
        with contextlib.suppress(OSError):
            if time.time() - entry.stat().st_mtime > _KEEP_S:
                os.unlink(entry.path)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC)
    states = {
        "source": source,
        "joined": joined,
        "reported": reported,
        "stopped": stopped,
        "absent": absent,
    }
    try:
        found = states[module.params["state"]](module.params)
    except NodeError as problem:
        found = {"problem": problem.sentence}
    except OSError as error:
        found = {"problem": os_problem(error)}
    module.exit_json(**{"problem": "", **found}, changed=False, **echo(module))


if __name__ == "__main__":
    main()
