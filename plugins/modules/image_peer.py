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
import signal
import socket
import stat
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Set, Tuple
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
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import (
    NOTED,
    PieceList,
    held,
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

_START_S = 20
_SAVE_S = 1800
"""Seconds that an engine may stay silent while it prepares the archive of an image."""
_PORT_S = 5
"""Seconds to wait for a port after the lease of a killed run's processes has expired."""
_ANSWER_S = 40
"""Longer than the controller waits for a report, which asks a source again that only stands still."""
_STOP_S = 6
_KILLED_S = 4
_ENGINE_S = 10
"""Seconds to wait for an engine that need not answer."""
_KEEP_S = 7 * 24 * 3600
_TAKEN_OVER = "another run has taken it over"


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
            sign(lock, run_name(params))
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


def sign(lock: Any, run: str) -> None:
    """Write into a lock that this process holds it, and for which run: see `held_by`."""
    lock.truncate(0)
    lock.write("{0} {1}".format(os.getpid(), run))
    lock.flush()


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


def serve(params: Dict[str, Any], base: str, lock: Any) -> Dict[str, Any]:
    """Start the process that serves the archive at `path`.

    Args:
        params: of the module.
        base: path prefix of this node's files for the archive.
        lock: for these files; that process gets it.
    """
    address = source_address(params["network"])
    growing = params["pieces"] is not None
    index: Dict[str, Any] = {}
    if growing:
        pieces = PieceList.decoded(params["pieces"].encode(), params["digest"])
        until = time.monotonic() + _START_S
        while not os.path.exists(params["path"]) and time.monotonic() < until:
            time.sleep(0.1)
    elif params["files"]:
        pieces = joined_pieces(params["path"], params["files"])
        index = ArchiveIndex("none", pieces.size, "", 0, False, []).to_json()
    else:
        before = os.stat(params["path"])
        made = cached_index(params["path"], params["sha256"], params["cache_dir"] or default_cache_dir())
        pieces = read_pieces(params["path"], made)
        after = os.stat(params["path"])
        if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
            raise NodeError("{0} was changed while it was read".format(params["path"]))
        index = made.to_json()
    settings = Settings(
        params["name"],
        address,
        params["port"],
        params["token"],
        None,
        params["bandwidth"] * 1e6 / 8,
        params["lease"],
    )
    os.unlink(lock.name)
    lock.close()
    started = start(
        base,
        params,
        lambda: Peer(
            settings,
            pieces.digest,
            params["path"],
            pieces,
            growing=growing,
            joined=bool(params["files"]),
        ),
        params["path"] if params["image"] else "",
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
    settings = Settings(
        params["name"],
        local_address(at),
        params["port"],
        params["token"],
        at,
        params["bandwidth"] * 1e6 / 8,
        params["lease"],
    )
    path = base + ".tar"
    left_out = left_out_of(params["index"]) if params["index"] else tuple(params["left_out"])
    blobs = engine_blobs()
    started = start(
        base,
        params,
        lambda: Peer(settings, params["digest"], path, left_out=left_out, blobs=blobs),
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
            raise NodeError(_TAKEN_OVER)
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
    if held_by(base)[1] not in ("", run_name(params)):
        return {**result, "problem": _TAKEN_OVER}
    with end_other(base, run_name(params)):
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


def run_name(params: Dict[str, Any]) -> str:
    """Return the run's name in a lock: a hash of its token, which stays secret."""
    return hashlib.sha256(params["token"].encode()).hexdigest()


def held_by(base: str) -> Tuple[str, str]:
    """Return the process and the run that hold the lock, or held it last; both are empty without a lock."""
    with contextlib.suppress(OSError), open(base + ".lock", encoding="ascii") as file:
        process, _, run = file.read().partition(" ")
        return process, run
    return "", ""


def start(base: str, params: Dict[str, Any], make: Callable[[], Peer], temporary: str = "") -> Dict[str, Any]:
    """Start a process that outlives this module, and return when it listens.

    Args:
        base: path prefix of its files.
        params: of the module.
        make: makes its peer.
        temporary: a file that the process removes when it ends.
    """
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        try:
            os.close(read_end)
            os.setsid()
            if os.fork() == 0:
                _be_daemon(base, params, make, write_end, temporary)
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, encoding="utf-8") as output:
        text = output.read()
    if not text:
        raise NodeError("its process ended before it listened")
    answer: Dict[str, Any] = json.loads(text)
    if answer.get("problem"):
        raise NodeError(str(answer["problem"]))
    return answer


def _be_daemon(
    base: str, params: Dict[str, Any], make: Callable[[], Peer], write_end: int, temporary: str
) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(nothing, handle)
    for handle in map(int, os.listdir("/proc/self/fd")):
        if handle > 2 and handle != write_end:
            with contextlib.suppress(OSError):
                os.close(handle)
    os.umask(0o077)
    signal.setitimer(signal.ITIMER_REAL, _START_S + params["lease"] + _PORT_S)
    problem: Dict[str, Any] = {}
    lock = None
    try:
        lock = held(base)
        if lock is None:
            raise NodeError("another run brings this archive here")
        sign(lock, run_name(params))
        with contextlib.suppress(OSError):
            os.unlink(base + ".result")
        wait_for_port(os.path.dirname(base), params["port"], params["lease"] + _PORT_S)
        peer = make()
    except NodeError as error:
        problem = {"problem": error.sentence}
    except OSError as error:
        problem = {"problem": os_problem(error)}
    except OverflowError as error:  # a port
        problem = {"problem": str(error)}
    if problem:
        if lock is not None:
            with contextlib.suppress(OSError):
                os.unlink(base + ".lock")
        os.write(write_end, json.dumps(problem).encode())
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGTERM, lambda _number, _frame: peer.end())
    os.write(write_end, json.dumps({"port": peer.port, "stored": peer.file.stored}).encode())
    os.close(write_end)
    peer.run()
    result = {"complete": not peer.missing and not peer.error, "error": peer.error, "trouble": peer.trouble}
    if temporary:
        os.unlink(temporary)
    with open(base + ".result", "w", encoding="utf-8") as file:
        json.dump(result, file)


def wait_for_port(directory: str, port: int, timeout: float) -> None:
    """Wait while a process of an earlier run, which ends by itself, listens on a port.

    Args:
        directory: with the locks of these processes.
        port: of any address.
        timeout: in seconds.
    """
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        sockets = listening(port)
        processes = [
            held_by(entry.path[:-5])[0] for entry in os.scandir(directory) if entry.name[-5:] == ".lock"
        ]
        if not sockets or not any(sockets & open_sockets(process) for process in processes):
            return
        time.sleep(0.1)


def listening(port: int) -> Set[str]:
    """Return the inodes of the sockets that listen on a port, by the kernel's tables: see proc(5)."""
    rows = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as file:
            rows += [line.split() for line in file]
    local = ":{0:04X}".format(port)
    return {row[9] for row in rows if row[1].endswith(local) and row[3] == "0A"}


def open_sockets(process: str) -> Set[str]:
    """Return the inodes of a process's sockets; none if it is gone."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc/{0}/fd".format(process)):
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry.path).partition("socket:[")[2].rstrip("]"))
    return found


def end_other(base: str, only: str = "") -> Any:
    """End the process that a run has left here, and return the lock that it held.

    The process saves the list of its pieces when it ends.

    Args:
        base: path prefix of its files.
        only: `run_name` of the run whose process may be ended; any run's by default.

    Raises:
        NodeError: it does not end, or another run has started one since.
        OSError: the file system has no locks.
    """
    until = time.monotonic() + _STOP_S
    text = ""
    while time.monotonic() < until + _KILLED_S:
        lock = held(base)
        if lock is not None:
            return lock
        text, run = held_by(base)
        if only and run not in ("", only):
            raise NodeError(_TAKEN_OVER)
        if text.isdigit():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(text), signal.SIGTERM if time.monotonic() < until else signal.SIGKILL)
        time.sleep(0.1)
    raise NodeError("process {0} of an earlier run, which holds {1}.lock, does not end".format(text, base))


def forget_old(directory: str) -> None:
    """Remove files of earlier runs that no run has used for a week."""
    for entry in os.scandir(directory):
        with contextlib.suppress(OSError):
            if time.time() - entry.stat().st_mtime > _KEEP_S:
                os.unlink(entry.path)


def os_problem(error: OSError) -> str:
    """Return what failed, with the name of the file."""
    where = "{0}: ".format(error.filename) if error.filename else ""
    return where + (error.strerror or str(error))


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
