# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfer a file to many nodes: the first node gets it, and the others fetch it from each other.

The nodes run plugins/modules/image_peer.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names, size_text
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_cache import (
    cached_index,
    default_cache_dir,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import ArchiveIndex
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import (
    NOTED,
    PieceList,
    read_pieces,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.remote_executor import (
    OrdinaryError,
    RemoteExecutor,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.image_transfer import (
    Watch,
    progress_line,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.thread_pool import (
    end_children,
    run_all,
)

MODULE = "rdm.provision.image_peer"
CALL_S = 60.0
READ_S = 3600.0
READ_BYTES = 64 << 30
"""Timeout in seconds for a node to read so many bytes, on a slow disk or from a busy file server."""
_POLL_S = 1.0
_RENEW_S = 5.0
"""Seconds between two reports while nodes join; later, what a pause between two counts for at most."""
_REPORT_S = 30.0
"""Timeout in seconds of a report, which renews the source's lease."""
_LEASE_S = 2 * (_REPORT_S + _RENEW_S)
"""A stall of half a minute is ordinary, so one report may time out, and the next may take as long."""
_START_S = CALL_S + _LEASE_S
"""Timeout in seconds for a node to start, which waits for the port of a killed run's processes."""
_LOST_S = 30.0
"""A source that two reports or more have not reached for so long is given up."""


class Transfer:
    """The transfer of one file to the nodes that lack it.

    Args:
        action: the action that displays the progress.
        executor: runs modules on the nodes.
        options: `network`, `port`, `bandwidth`, `cluster` and `cache_dir`, as the module
            image_distribution documents them.
        variables: of the task.
        item: `path` of the file, `remote_src` and `sha256`, as in `images_list`; or, with `image: true`, the
            name of an image in the engine of the first host as `path`; or, with `files`, paths below the
            directory `path` of the first host and their bytes.
        hosts: node that lacks the file -> its `size`, and `present_members`, which are not sent.
        index: the index of a file on the controller; None to read it from an archive.
        unpack: whether the source sends an archive that it has decompressed; not one with a `sha256`, which
            the other nodes could not verify.

    Attributes:
        sha256: of a file with an index, once it has been read.
    """

    def __init__(
        self,
        action: ActionBase,
        executor: RemoteExecutor,
        options: dict[str, Any],
        variables: dict[str, Any],
        item: Mapping[str, Any],
        hosts: Mapping[str, Mapping[str, Any]],
        index: ArchiveIndex | None = None,
        unpack: bool = False,
    ) -> None:
        self._action = action
        self._executor = executor
        self._options = options
        self._threads = max(1, int(variables["ansible_forks"]))
        self._hosts = hosts
        self._index = index
        self._unpack = unpack and not item.get("sha256")
        self._run = os.getppid()
        self._upload: _Upload | None = None
        self.sha256 = ""
        self._sha256 = str(item.get("sha256") or "")
        self._name = str(item["path"])
        self._image = bool(item.get("image"))
        self._files = item.get("files")
        self._here = not item.get("remote_src", True)
        self._path = self._name
        if self._here:
            home = variables.get("inventory_dir") or os.getcwd()
            self._path = os.path.join(home, os.path.expanduser(self._name))
        self._words = [options["cluster"], self._path, self._sha256]
        if self._files:  # those of another node are in another archive
            self._words.append(next(iter(hosts)))
        self._common = {
            "cache_dir": options["cache_dir"],
            "port": options["port"],
            "bandwidth": options["bandwidth"],
            "token": secrets.token_hex(32),
            "lease": _LEASE_S,
        }

    def run(self, result: dict[str, Any]) -> None:
        """Run the transfer to its end, and add each node's outcome to `result`."""
        first, *others = self._hosts
        upload: _Upload | None = None
        reads = "saves" if self._image else "decompresses" if self._unpack else "reads"
        self._show(f"{self._name}: {'the controller' if self._here else first} {reads} it")
        try:
            source = {
                "state": "source",
                "name": first,
                **({"image": self._name} if self._image else {"path": self._path, "unpack": self._unpack}),
                **({"files": self._files} if self._files else {}),
                "sha256": self._sha256,
                "network": self._options["network"],
            }
            if self._here:
                pieces, upload = self._start_upload(first)
                source.update(path=upload.path, pieces=pieces.encoded().decode(), digest=pieces.digest)
                started = {**self._call(first, source, _START_S), "index": upload.index}
            else:
                size = sum(self._files.values()) if self._files else self._hosts[first].get("size", 0)
                started = self._call(first, source, READ_S * (1 + size / READ_BYTES))
        except AnsibleActionFail:
            raise
        except (OrdinaryError, AnsibleError, NodeError) as error:
            if self._files:
                for name in others:
                    why = f"{first} cannot send {self._name} to {name}: {error}"
                    self._note(result, name, {"problem": why})
                return
            directly = "pulled by each node" if self._image else "brought to each node directly"
            self._warn(f"{self._name} is {directly}, since {first} cannot serve it: {error}")
            if upload:
                self._end_upload(first, upload, result)
            return
        at = [started["address"], str(started["port"])]
        # If a node has listed the pieces, the controller's sha256 verifies nothing but the whole archive.
        verified = bool(self._sha256) and not self._here
        unpacked = str(started.get("path") or "")
        joining: dict[str, dict[str, Any]] = {
            name: {
                "state": "joined",
                "digest": started["digest"],
                "left_out": [] if verified else self._hosts[name].get("present_members") or [],
                # Nobody has compared a saved image, or a decompressed archive, with the nodes' engines yet.
                **({"index": started["index"]} if self._image or unpacked else {}),
                "name": name,
                "source": at,
            }
            for name in others
        }
        answers, problems = self._call_all(joining, _START_S, self._presence(first, at))
        joined = [name for name in answers if not answers[name]["problem"]]
        problems.update({name: one["problem"] for name, one in answers.items() if one["problem"]})
        stored = {name: answers[name]["stored"] for name in joined if answers[name]["stored"]}
        if stored:
            most = size_text(max(stored.values()))
            self._show(f"{self._name}: up to {most} of it are already in the engine of {names(stored)}")
        watch = Watch(joined, int(started["index"]["size"]), time.monotonic())
        lost = self._watch(first, at, watch, result, upload)
        if upload:
            self._end_upload(first, upload, result)
        stop = {"state": "stopped"}
        saved = {"image": self._name} if self._image else {}
        # Nodes that did not join get the file in another way; one that did not answer may have joined late.
        ends, unreached = self._call_all({first: {**stop, **saved}, **dict.fromkeys(others, stop)})
        if not lost:  # else a later run may have taken over, and its files have the same names
            # Files of a node reach the others in no other way than by the next run, which continues.
            other_way = {} if self._files else problems
            left = {name: ends[name]["path"] for name in other_way if "path" in ends.get(name, {})}
            remove_left(self._executor, left, self._threads)
            if unpacked:
                self._note(result, first, {"copy": unpacked, "whole": "yes"})
        result["indexes"][self._name] = started["index"]
        for name in joined:
            end = ends.get(name, {})
            if end.get("complete"):
                copy = {"copy": end["path"]}
                if verified:
                    copy["sha256"] = self._sha256.lower()
                self._note(result, name, copy)
                continue
            if end.get("error"):
                # The source may have been lost, or slow, before it had heard of this.
                watch.add_error(name, end["error"])
            problem = end.get("problem") or unreached.get(name)
            missing = f"did not report its end: {problem}" if problem else "has not got all of it"
            why = watch.given_up.get(name) or lost or missing
            # A later run resumes from the part that has arrived.
            left = {"left": end["path"]} if "path" in end else {}
            what = f"{self._name} of {first}" if self._files else self._name
            self._note(result, name, {"problem": f"{what} did not reach {name}, which {why}", **left})
        if self._files:
            for name in problems.keys() & set(others):
                why = f"{first} could not send {self._name} to {name}: {problems[name]}"
                self._note(result, name, {"problem": why})
            problems.clear()
        for why in dict.fromkeys(problems[name] for name in others if name in problems):
            those = names(name for name in others if problems.get(name) == why)
            directly = "pulled by" if self._image else "brought directly to"
            alone = f"{self._name} is {directly} {those}, which cannot take part"
            self._warn(f"{alone} with {first} as source: {why}")
        for name, why in watch.slow.items():
            self._warn(f"{name} {why} while {self._name} went from node to node; the others did without it")

    def outcome(
        self, result: dict[str, Any], instead: str = ""
    ) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
        """Run the transfer; return the copies of the nodes that got the file, and why the others did not.

        Args:
            result: of the action; `run` adds to all but its nodes.
            instead: how the others get it, for a warning; then they keep no half of it. Without it, a later
                run continues with what they have.
        """
        found: dict[str, Any] = {"indexes": {}, **result, "nodes": {}}
        self.run(found)
        ends = {name: own[self._name] for name, own in found["nodes"].items()}
        failed = {name: end for name, end in ends.items() if "problem" in end}
        if instead:
            for name, end in failed.items():
                self._warn(f"{name} {instead}: {end['problem']}")
            parts = {name: end.get("copy") or end.get("left") for name, end in failed.items()}
            remove_left(self._executor, {name: part for name, part in parts.items() if part}, self._threads)
        copies = {name: end for name, end in ends.items() if name not in failed}
        return copies, {name: end["problem"] for name, end in failed.items()}

    def forget(self) -> None:
        """Remove what earlier transfers have left on the nodes, which get the file in another way."""
        self._call_all({name: {"state": "absent"} for name in self._hosts})

    def _start_upload(self, first: str) -> tuple[PieceList, _Upload]:
        """Read the archive on the controller, and start to copy it to the node that will serve it."""
        cache_dir = self._options["cache_dir"] or default_cache_dir()
        index = self._index or cached_index(self._path, self._sha256, cache_dir)
        whole = hashlib.sha256() if self._index else None
        pieces = read_pieces(self._path, index, whole)
        self.sha256 = whole.hexdigest() if whole else ""
        host = self._executor.host(first)
        copy, send = self._executor.copy(host, self._path, f"rdm-image-{self._key(first)[:16]}")
        self._upload = _Upload(copy, send, index.to_json())
        return pieces, self._upload

    def _end_upload(self, first: str, upload: _Upload, result: dict[str, Any]) -> None:
        """Wait for the end of the copy; its node loads it even if no other node got it."""
        while not upload.has_ended(_POLL_S):
            self.require_run()
        broken = {"problem": f"{self._name} did not reach {first}: {upload.broken}"}
        result["indexes"][self._name] = upload.index
        copy = {"copy": upload.path, "whole": "yes"}
        self._note(result, first, {**copy, **broken} if upload.broken else copy)

    def _key(self, name: str) -> str:
        """Return the name of a node's files for this archive; nodes that share a home need different ones."""
        return hashlib.sha256("\0".join([*self._words, name]).encode()).hexdigest()[:32]

    def _presence(self, first: str, at: list[str]) -> Callable[[], None]:
        """Return a function that renews the source's lease from time to time."""
        last = time.monotonic()

        def show() -> None:
            nonlocal last
            if time.monotonic() - last > _RENEW_S:
                with contextlib.suppress(NodeError):
                    self._report(first, at)
                last = time.monotonic()

        return show

    def _report(self, first: str, at: list[str]) -> dict[str, Any]:
        """Return the source's report, and renew its lease."""
        return self._call(first, {"state": "reported", "source": at}, _REPORT_S)

    def _watch(
        self, first: str, at: list[str], watch: Watch, result: dict[str, Any], upload: _Upload | None
    ) -> str:
        """Wait until all nodes have the file or are given up; return why the transfer ended earlier."""
        heard = watched = time.monotonic()
        failures = 0
        shown = ""
        while not (upload and upload.broken):
            try:
                report = self._report(first, at)
            except NodeError as error:
                failures += 1
                # One failed call is no reason to give up all nodes.
                patient = failures < 2 or time.monotonic() - heard < _LOST_S
                if isinstance(error, _Unreached) and patient:
                    time.sleep(_POLL_S)
                    continue
                return f"lost its source {first}: {error}"
            now, failures = time.monotonic(), 0
            # A source that stood still has sent nothing meanwhile, and heard nobody.
            watched += min(now - heard, _RENEW_S)
            heard = now
            result["sent"][self._name] = report["sent"]
            watch.add(report["nodes"], watched)
            text = watch.text(self._name)
            if text != shown:
                self._show(text)
                shown = text
            if watch.ended():
                return ""
            time.sleep(_POLL_S)
        return f"lost its source {first}: {upload.broken}"

    def _call(self, name: str, arguments: Mapping[str, Any], timeout: float = CALL_S) -> dict[str, Any]:
        answers, problems = self._call_all({name: arguments}, timeout)
        if name in problems:
            raise _Unreached(problems[name])
        if answers[name]["problem"]:
            raise NodeError(answers[name]["problem"])
        return answers[name]

    def _call_all(
        self,
        arguments: Mapping[str, Mapping[str, Any]],
        timeout: float = CALL_S,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return the module's result on each host, and why it failed on the others.

        Args:
            arguments: host -> the module's arguments.
            timeout: seconds for each call.
            meanwhile: called repeatedly until all calls have ended.

        Raises:
            AnsibleActionFail: the run has been killed, and only this worker is left.
        """
        self.require_run()
        whole = {name: {**self._common, "key": self._key(name), **own} for name, own in arguments.items()}
        return call_all(self._executor, MODULE, whole, self._threads, timeout, meanwhile)

    def require_run(self) -> None:
        """End the upload and raise AnsibleActionFail if the run has been killed."""
        # Do not stop the nodes' processes: they end by themselves, and may belong to the next run by now.
        if os.getppid() != self._run:
            if self._upload:
                self._upload.end()
            raise AnsibleActionFail("the run has been killed")

    def _note(self, result: dict[str, Any], name: str, what: dict[str, str]) -> None:
        result["nodes"].setdefault(name, {})[self._name] = what

    def _show(self, text: str) -> None:
        self._action._display.display(progress_line(text), stderr=True)

    def _warn(self, text: str) -> None:
        self._action._display.warning(text)


class _Unreached(NodeError):  # noqa: N818  # it is tried again
    """The node did not answer this time."""


class _Upload:
    """The copy of an archive from the controller to the node that will serve it.

    Attributes:
        path: its path on the node.
        index: the archive's index.
        broken: why the copy failed; empty if it did not.
    """

    def __init__(self, path: str, send: Callable[[], Any], index: dict[str, Any]) -> None:
        self.path = path
        self.index = index
        self.broken = ""
        self._send = send
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def has_ended(self, timeout: float) -> bool:
        """Wait at most so many seconds, and return whether the copy has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def end(self) -> None:
        """End the program that copies, which would outlive this process."""
        end_children(self._thread)

    def _run(self) -> None:
        try:
            self._send()
        except Exception as error:
            self.broken = f"the copy to it broke off: {error}"


def call_all(
    executor: RemoteExecutor,
    module: str,
    arguments: Mapping[str, Mapping[str, Any]],
    threads: int,
    timeout: float = CALL_S,
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return a module's result on each host, and why it failed on the others, in the order of `arguments`.

    Args:
        executor: runs modules on the hosts.
        module: its name.
        arguments: host -> the module's arguments.
        threads: the most calls at the same time.
        timeout: seconds for each call.
        meanwhile: called repeatedly until all calls have ended.
    """
    problems: dict[str, str] = {}

    def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
        for name, values in arguments.items():
            try:
                yield name, executor.call(executor.host(name), module, values)
            except (OrdinaryError, AnsibleError) as error:
                problems[name] = str(error)

    answers = {}
    for name, value, failure in run_all(calls(), threads, timeout, meanwhile):
        meanwhile()
        if isinstance(failure, AnsibleConnectionFailure):
            problems[name] = "it cannot be reached"
        elif isinstance(failure, TimeoutError):
            problems[name] = f"it has not answered for {timeout:.0f} s"
        elif failure is not None:
            problems[name] = str(failure) or type(failure).__name__
        elif value.get("failed"):
            problems[name] = str(value.get("msg") or "its module failed")
        else:
            answers[name] = value
    ordered = {name: answers[name] for name in arguments if name in answers}
    return ordered, {name: problems[name] for name in arguments if name in problems}


def remove_left(executor: RemoteExecutor, left: Mapping[str, str], threads: int) -> None:
    """Remove what has arrived of a file on nodes that get it in another way.

    Args:
        executor: runs modules on the hosts.
        left: host -> path of the file with the pieces.
        threads: the most calls at the same time.
    """
    for ending in ("", NOTED):
        gone = {name: {"path": path + ending, "state": "absent"} for name, path in left.items()}
        call_all(executor, "ansible.legacy.file", gone, threads)
