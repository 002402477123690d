# SPDX-License-Identifier: GPL-3.0-or-later
"""Files, directories and blocks on a node. All changes are planned before the first one is made.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import errno
import glob
import grp
import os
import pwd
import re
import stat
import subprocess
import tempfile
from typing import Any, Dict, Iterable, List, NamedTuple, Optional

from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import TEMPORARY, write_whole
from ansible_collections.rdm.provision.plugins.module_utils.base.file_diff import (
    SHOWN_WHOLE,
    difference,
    prepared,
)
from ansible_collections.rdm.provision.plugins.module_utils.base.host import installed, login_user
from ansible_collections.rdm.provision.plugins.module_utils.base.local_path import local_path
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.shell_variable import repaired
from ansible_collections.rdm.provision.plugins.module_utils.base.ssh_config import ssh_client_config
from ansible_collections.rdm.provision.plugins.module_utils.base.text_blocks import (
    BlockError,
    drop_block,
    put_block,
)

CONTENTS = ["content", "secret_content", "ssh_client_config"]


_MARK = TEMPORARY + "made"  # in a directory that this module created


_MARK_TEXT = b"Made by rdm-provision, which removes this directory when nothing else is left in it.\n"


_DIRECTORY_MODE = 0o755
_SECRET = "(secret)\n"  # noqa: S105  # placeholder in diffs


class Owner(NamedTuple):
    """Owner of a file; -1 leaves it unchanged."""

    uid: int
    gid: int


class Entry:
    """One path before and after. Data is None where there is no such file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.before, self.old_mode, self.old_owner = _read(path)
        self.after = self.before
        # Where the directory is mounted, the link's target may not exist, so a file replaces the link.
        self.link = os.readlink(path) if os.path.islink(path) else ""
        self.mode: Optional[int] = None  # None: unchanged
        self.owner = Owner(-1, -1)
        self.secret = False
        self.validate: List[str] = []
        self.backup = False  # whether to keep a copy of the old file next to it

    @property
    def stays(self) -> bool:
        """Whether the file exists both before and after."""
        return self.before is not None and self.after is not None

    @property
    def mode_changes(self) -> bool:
        """Whether the permissions of a remaining file change."""
        return self.stays and self.mode is not None and self.mode != self.old_mode

    @property
    def owner_changes(self) -> bool:
        """Whether the owner of a remaining file changes."""
        return self.stays and _differs(self.owner, self.old_owner)

    @property
    def rewritten(self) -> bool:
        """Whether a new file replaces it."""
        return self.before != self.after or self.owner_changes or bool(self.link)

    @property
    def changes(self) -> bool:
        """Whether anything changes."""
        return self.rewritten or self.mode_changes

    def diff(self) -> Dict[str, str]:
        """Return the diff to show, without the contents of a secret."""
        shown = {"before_header": self.path, "after_header": self.path}
        shown["before"] = self._shown(self.before)
        shown["after"] = self._shown(self.after)
        if self.secret and self.before is not None and self.after is not None and self.before != self.after:
            shown["after"] = "(another secret)\n"
        if self.owner_changes:
            shown["before_header"] += " (of user {0}, group {1})".format(*self.old_owner)
        if self.mode_changes and self.mode is not None:
            shown["before_header"] += " (mode {0:04o})".format(self.old_mode)
            shown["after_header"] += " (mode {0:04o})".format(self.mode)
        if self.link:
            shown["before_header"] += " (a link to {0})".format(self.link)
        # Ansible keeps the diffs of all nodes, and some files have a line per node.
        whole = len(shown["before"]) + len(shown["after"]) <= SHOWN_WHOLE
        return shown if whole else {"prepared": prepared(**shown)}

    def _shown(self, data: Optional[bytes]) -> str:
        if data is None:
            return ""
        return _SECRET if self.secret else data.decode("utf-8", "replace")


class Plan:
    """All changes, planned before the first one is made."""

    def __init__(self, params: Dict[str, Any]) -> None:
        self.owner = _owner(params.get("owner"), params.get("group"))
        # A file that we wrote gets our owner back when somebody has changed it.
        self.own = self.owner if params.get("owner") else self.owner._replace(uid=os.geteuid())
        self.entries: Dict[str, Entry] = {}
        self.made: List[str] = []
        self.moded: List[str] = []
        self.removed: List[str] = []
        self.kept: List[str] = []
        self._modes: Dict[str, int] = {}
        for item in params["directories"]:
            if item["state"] == "present":
                self._make(_absolute(item["path"]), None if item["mode"] is None else _mode(item["mode"]))
        for item in params["files"]:
            self._file(item)
        for item in params["blocks"]:
            self._block(item)
        for item in params.get("repairs") or ():
            self._repair(item)
        # Deepest first, so that a directory is removed too if it contains only directories of ours.
        absent = (item for item in params["directories"] if item["state"] == "absent")
        self._named = {_absolute(item["path"]) for item in absent}
        for path in sorted(self._named, key=len, reverse=True):
            self._remove(path)

    def changes(self) -> List[str]:
        """Return the paths that change, in the order of apply()."""
        files = [entry.path for entry in self.entries.values() if entry.changes]
        return self.made + self.moded + files + self.removed

    def diff(self) -> List[Dict[str, str]]:
        """Return one diff per change."""
        shown = []
        for path in self.made:
            shown.append(difference(path, "", "directory, mode {0:04o}\n".format(self._modes[path])))
        for path in self.moded:
            old = "directory, mode {0:04o}\n".format(stat.S_IMODE(os.stat(path).st_mode))
            shown.append(difference(path, old, "directory, mode {0:04o}\n".format(self._modes[path])))
        shown += [entry.diff() for entry in self.entries.values() if entry.changes]
        shown += [difference(path, "directory\n", "") for path in self.removed]
        return shown

    def apply(self, module: Any) -> None:
        """Make the changes. An OSError names the path."""
        for entry in self.entries.values():
            if entry.validate and entry.rewritten:
                _validate(entry)
        for path in self.made:
            try:
                os.mkdir(path)
            except FileExistsError:
                if os.path.isdir(path):  # created by another node that shares it
                    continue
                raise
            _mark(path, self.owner)
            os.chmod(path, self._modes[path])
            os.chown(path, *self.owner)
        for path in self.moded:
            os.chown(path, *(self.own if _is_marked(path) else self.owner))
            os.chmod(path, self._modes[path])
        for entry in self.entries.values():
            if entry.after is None:
                if os.path.lexists(entry.path):
                    os.unlink(entry.path)
            elif entry.rewritten:
                if entry.backup:
                    module.backup_local(entry.path)
                _replace(module, entry)
            elif entry.mode_changes and entry.mode is not None:
                os.chmod(entry.path, entry.mode)
        for path in self.removed:
            _remove_directory(path)

    def _make(self, path: str, mode: Optional[int]) -> None:
        if os.path.isdir(path):
            now = os.stat(path)
            if mode is None:
                mode = _DIRECTORY_MODE if _is_marked(path) else stat.S_IMODE(now.st_mode)
            self._modes[path] = mode
            owner = self.own if _is_marked(path) else self.owner
            differs = stat.S_IMODE(now.st_mode) != mode or _differs(owner, Owner(now.st_uid, now.st_gid))
            if differs and path not in self.moded:
                self.moded.append(path)
            return
        self._make_new(path, _DIRECTORY_MODE if mode is None else mode)

    def _make_new(self, path: str, mode: int) -> None:
        self._modes[path] = mode
        if path in self.made:  # parent of a directory planned earlier
            return
        if os.path.lexists(path):
            raise NodeError("{0} is not a directory".format(path))
        parent = os.path.dirname(path)
        if parent not in self.made and not os.path.isdir(parent):
            self._make_new(parent, _DIRECTORY_MODE)
        self.made.append(path)

    def _file(self, item: Dict[str, Any]) -> None:
        path = _absolute(item["path"])
        entry = self._entry(path)
        secret = item["secret_content"] is not None
        private = _mode(item["mode"]) & 0o077 == 0 or (
            entry.before is not None and entry.old_mode & 0o077 == 0
        )
        entry.secret = entry.secret or secret or private
        if item["state"] == "absent":
            entry.after = None
            return
        entry.after = _content(path, item).encode()
        entry.mode = _mode(item["mode"])
        entry.validate = item.get("validate") or []
        entry.owner = self.own
        self._need_parent(path)

    def _block(self, item: Dict[str, Any]) -> None:
        path = os.path.realpath(_absolute(item["path"]))
        entry = self._entry(path)
        try:
            if item["state"] == "absent":
                if entry.after is not None and not self._is_needed(item["needed_by"]):
                    entry.after = drop_block(entry.after, item["name"])
            elif entry.after is not None or item["create"]:
                if entry.after is None:
                    self._need_parent(path)
                    entry.mode = _mode(item["mode"])
                    entry.owner = self.owner
                entry.after = put_block(entry.after, item["name"], item["content"], item["insert"] == "start")
        except BlockError as error:
            raise NodeError("{0}: {1}".format(path, error)) from error

    def _repair(self, item: Dict[str, Any]) -> None:
        """Comment out lines that give shells a value other than the blocks'."""
        texts = repaired(
            item["variable"],
            item["value"],
            login_user()["home"],
            item["system"],
            installed("zsh"),
            self._planned,
        )
        for path, text in texts.items():
            entry = self._entry(path)
            entry.after = text.encode("utf-8", "surrogateescape")
            entry.secret = entry.secret or entry.old_mode & 0o077 == 0
            entry.backup = True

    def _planned(self, path: str) -> str:
        """Return the planned content of a file; empty if it cannot be read."""
        real = os.path.realpath(path)
        try:
            data = self.entries[real].after if real in self.entries else _read(real)[0]
        except (OSError, NodeError):
            return ""
        return (data or b"").decode("utf-8", "surrogateescape")

    def _remove(self, path: str) -> None:
        if not os.path.lexists(path):
            return
        if os.path.islink(path) or not os.path.isdir(path):
            raise NodeError("{0} is not a directory".format(path))
        gone = {entry.path for entry in self.entries.values() if entry.after is None} | set(self.removed)
        left = [
            name
            for name in os.listdir(path)
            if os.path.join(path, name) not in gone and not name.startswith(TEMPORARY)
        ]
        if left or not _is_marked(path):
            self.kept.append(path)
            return
        self.removed.append(path)
        above = os.path.dirname(path)
        # We created the parent only for this directory.
        if above not in self._named and _is_marked(above) and not os.path.islink(above):
            self._remove(above)
            self.kept = [one for one in self.kept if one != above]

    def _is_needed(self, pattern: str) -> bool:
        """Return whether files match the pattern that this plan does not remove."""
        gone = {entry.path for entry in self.entries.values() if entry.after is None}
        return bool(pattern) and not gone.issuperset(glob.glob(os.path.expanduser(pattern)))

    def _entry(self, path: str) -> Entry:
        if path not in self.entries:
            self.entries[path] = Entry(path)
        return self.entries[path]

    def _need_parent(self, path: str) -> None:
        parent = os.path.dirname(path)
        if parent not in self.made and not os.path.isdir(parent):
            raise NodeError("{0} cannot be written: there is no directory {1}".format(path, parent))


def with_owner_marker(params: Dict[str, Any], markers: Iterable[Dict[str, str]]) -> Dict[str, Any]:
    """Return the parameters with owner markers among the files, or without what other clusters own."""
    for marker in markers:
        params = _with_owner_marker(params, marker)
    return params


def _with_owner_marker(params: Dict[str, Any], marker: Dict[str, str]) -> Dict[str, Any]:
    path = _absolute(marker["path"])
    home = os.path.dirname(path)
    before = _read(path)[0]
    holder = (before or b"").decode("utf-8", "replace").strip()
    entries = params["directories"] + params["files"]
    writes = any(item["state"] == "present" for item in entries)
    if holder and holder != marker["name"]:
        if writes:
            raise NodeError("{0} belongs to the cluster {1}: choose another directory".format(home, holder))
        return dict(params, directories=[], files=[])
    goes = {_absolute(item["path"]) for item in entries} | {path}
    if not writes and (before is None or home not in goes or not _only(home, goes)):
        return params
    mine = {**dict.fromkeys(CONTENTS), "path": path, "content": marker["name"] + "\n", "mode": "0644"}
    return dict(params, files=params["files"] + [dict(mine, state="present" if writes else "absent")])


def _only(directory: str, goes: "set[str]") -> bool:
    """Return whether everything below a directory is going to be removed."""
    for entry in os.scandir(directory):
        if entry.name.startswith(TEMPORARY):
            continue
        below = entry.is_dir(follow_symlinks=False)
        if entry.path not in goes or (below and not _only(entry.path, goes)):
            return False
    return True


def _differs(wanted: Owner, now: Owner) -> bool:
    return wanted.uid not in (-1, now.uid) or wanted.gid not in (-1, now.gid)


def _is_marked(path: str) -> bool:
    """Return whether this module created the directory."""
    return os.path.lexists(os.path.join(path, _MARK))


def _remove_directory(path: str) -> None:
    """Remove a directory of ours, unless a node that shares it has removed it or put a file there."""
    try:
        for name in os.listdir(path):
            # The owner marker, or a temporary file of a killed run.
            if name.startswith(TEMPORARY):
                os.unlink(os.path.join(path, name))
        os.rmdir(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
            raise


def _mark(path: str, owner: Owner) -> None:
    """Mark a new directory as created by this module."""
    with open(os.path.join(path, _MARK), "xb") as stream:
        stream.write(_MARK_TEXT)
        os.fchmod(stream.fileno(), 0o644)
        os.fchown(stream.fileno(), *owner)


def _content(path: str, item: Dict[str, Any]) -> str:
    """Return a file's content."""
    if item["ssh_client_config"] is None:
        return str(item["content"] if item["secret_content"] is None else item["secret_content"])
    try:
        return ssh_client_config(**item["ssh_client_config"])
    except ValueError as error:
        raise NodeError("{0}: {1}".format(path, error)) from error


def _absolute(given: str) -> str:
    path = local_path(given)
    if not os.path.isabs(path) or "\0" in path:
        raise NodeError("{0!r} is not an absolute path".format(given))
    return os.path.normpath(path)


def _mode(given: str) -> int:
    if not re.fullmatch(r"[0-7]{3,4}", given):
        raise NodeError("{0!r} is no mode: give it in octal, such as '0644'".format(given))
    return int(given, 8)


def _owner(owner: Optional[str], group: Optional[str]) -> Owner:
    try:
        return Owner(
            pwd.getpwnam(owner).pw_uid if owner else -1,
            grp.getgrnam(group).gr_gid if group else -1,
        )
    except KeyError as error:
        raise NodeError("no such owner or group: {0}".format(error.args[0])) from error


def _read(path: str) -> "tuple[Optional[bytes], int, Owner]":
    """Return a file's content, mode and owner. The content is None if there is no file."""
    try:
        now = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None, 0, Owner(-1, -1)
    if not stat.S_ISREG(now.st_mode):
        raise NodeError("{0} is not a regular file".format(path))
    with open(path, "rb") as stream:
        return stream.read(), stat.S_IMODE(now.st_mode), Owner(now.st_uid, now.st_gid)


def _validate(entry: Entry) -> None:
    """Let a program check the new content."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(entry.after or b"")
        file.flush()
        command = [word.replace("%s", file.name) for word in entry.validate]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode:
            lines = done.stdout.decode("utf-8", "replace").replace(file.name, entry.path).splitlines()
            errors = "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))
            raise NodeError("nothing was written: {0} would not be valid: {1}".format(entry.path, errors))


def _replace(module: Any, entry: Entry) -> None:
    """Replace the file atomically. The new one never has more permissions than planned."""

    def own(handle: int) -> None:
        if entry.before is not None and entry.owner == Owner(-1, -1):
            _keep_owner(handle, entry.old_owner)
        os.fchown(handle, *entry.owner)

    mode = entry.old_mode if entry.mode is None else entry.mode
    write_whole(entry.path, entry.after or b"", mode, own)
    if module.selinux_enabled():
        module.set_default_selinux_context(entry.path, False)


def _keep_owner(handle: int, owner: Owner) -> None:
    """Give the new file the old one's owner, unless it has it already."""
    now = os.fstat(handle)
    if (now.st_uid, now.st_gid) != owner:
        os.fchown(handle, *owner)
