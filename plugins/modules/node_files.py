#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write, and take away again, a set of small files in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_files
short_description: Write a set of small files, blocks in files, and directories in one call
description:
  - Writes all the small files that a role needs with one round trip.
  - A file is replaced in one step, so that a reader sees the old or the new one, never half of it.
  - A block is a marked part of a file that belongs to somebody else. Removing it leaves the rest of the file
    as it was, to the byte, and removes the file when it was made for the block.
  - Everything is looked at before anything is written. A problem with one entry leaves all of them untouched.
  - With O(claim) a directory belongs to one cluster. Others neither write there nor remove anything from it.
  - A directory that is named here and that the module makes gets a small file C(.rdm-provision-made). Only by
    that file does a later call know the directory as its own. A directory that was there before keeps its
    permissions, unless O(directories[].mode) is given, and is never removed.
author:
  - The rdm-provision developers
attributes:
  check_mode:
    support: full
    description: Says what would change without changing it.
  diff_mode:
    support: full
    description: Shows the lines that change; of a secret only that it changes.
  idempotent:
    support: full
    description: A second run changes nothing.
options:
  directories:
    description: Directories to make, or to remove when this module made them and nothing else is in them.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path; C(~) is the user that the module runs as.
        type: str
        required: true
      mode:
        description:
          - Permissions in octal. They hold whoever made the directory.
          - Unless given, a directory that this module made has C(0755), and any other is left as it is.
        type: str
      state:
        description: Whether it is there.
        type: str
        choices: [present, absent]
        default: present
  files:
    description: Files to write or remove.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path; C(~) is the user that the module runs as.
        type: str
        required: true
      content:
        description: What the file holds.
        type: str
      secret_content:
        description: What the file holds, where nobody may see it in a log or a difference.
        type: str
      ssh_client_config:
        description:
          - Makes the file an ssh_config, with which root reaches every container of a cluster by name or by
            MY_IP, with its own key and with the host key checked.
          - It is worked out on the node, because it is three times as long as what it is made of.
        type: dict
        suboptions:
          dictionary:
            description: One line C(node MY_IP) for each node.
            type: str
            required: true
          alias:
            description: The name under which known_hosts has the one host key of all containers.
            type: str
            required: true
          port:
            description: Where the containers' sshd listens.
            type: int
            default: 22
          directory:
            description: Where the keys are, in the container.
            type: str
            default: /etc/rdm/ssh
      mode:
        description: Permissions in octal.
        type: str
        default: "0644"
      state:
        description: Whether it is there.
        type: str
        choices: [present, absent]
        default: present
  blocks:
    description: Marked blocks in files that belong to somebody else.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path; C(~) is the user that the module runs as. A symbolic link is followed.
        type: str
        required: true
      name:
        description: Names the block in its marker lines.
        type: str
        required: true
      content:
        description: The lines between the markers.
        type: str
        default: ""
      insert:
        description: Where a new block goes. One that is there stays where it is.
        type: str
        choices: [start, end]
        default: end
      create:
        description: Whether to make the file when it is missing. If not, a missing file is left alone.
        type: bool
        default: true
      mode:
        description: Permissions in octal of a file that is made for the block.
        type: str
        default: "0644"
      state:
        description: Whether the block is there.
        type: str
        choices: [present, absent]
        default: present
  claim:
    description:
      - A file that says whose its directory is. It is written with the first of the files and directories,
        and goes when the directory has nothing else in it and is to be absent.
      - Where it holds another name, to write files or directories is a failure, and what is to be absent
        stays. Blocks have names of their own and are not affected.
    type: dict
    suboptions:
      path:
        description: Absolute path of the file; C(~) is the user that the module runs as.
        type: str
        required: true
      name:
        description: Who claims the directory.
        type: str
        required: true
  owner:
    description: Owner of the directories and files, and of files made for a block; else the current user.
    type: str
  group:
    description: Group of the directories and files, and of files made for a block.
    type: str
"""

EXAMPLES = r"""
- name: Write the dictionary and export MY_IP
  rdm.provision.node_files:
    directories:
      - path: /etc/rdm
    files:
      - path: /etc/rdm/nodes
        content: |
          node1 192.169.16.100
          node2 192.169.16.101
    blocks:
      - path: /etc/bash.bashrc
        name: my_ip
        content: export MY_IP=192.169.16.100
        insert: start
        create: false
"""

RETURN = r"""
paths:
  description: What was changed, made or removed, in the order it was done.
  returned: always
  type: list
  elements: str
  sample: [/etc/rdm, /etc/rdm/nodes]
made:
  description: The directories that were made.
  returned: always
  type: list
  elements: str
  sample: [/etc/rdm]
kept:
  description: >-
    The directories that were to be removed and are kept, because other things are in them or because this
    module has not made them.
  returned: always
  type: list
  elements: str
  sample: []
"""

import difflib
import grp
import os
import pwd
import re
import stat
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.node.echo import echo
from ansible_collections.rdm.provision.plugins.module_utils.node.ssh_files import ssh_client_config
from ansible_collections.rdm.provision.plugins.module_utils.node.text_blocks import (
    BlockError,
    drop_block,
    put_block,
)

_CONTENTS = ["content", "secret_content", "ssh_client_config"]
_STATE = {"type": "str", "choices": ["present", "absent"], "default": "present"}

ARGUMENT_SPEC: Dict[str, Any] = {
    "directories": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "mode": {"type": "str"},
            "state": _STATE,
        },
    },
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "content": {"type": "str"},
            "secret_content": {"type": "str", "no_log": True},
            "ssh_client_config": {
                "type": "dict",
                "options": {
                    "dictionary": {"type": "str", "required": True},
                    "alias": {"type": "str", "required": True},
                    "port": {"type": "int", "default": 22},
                    "directory": {"type": "str", "default": "/etc/rdm/ssh"},
                },
            },
            "mode": {"type": "str", "default": "0644"},
            "state": _STATE,
        },
        "mutually_exclusive": [_CONTENTS],
        "required_if": [["state", "present", _CONTENTS, True]],
    },
    "blocks": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
            "content": {"type": "str", "default": ""},
            "insert": {"type": "str", "choices": ["start", "end"], "default": "end"},
            "create": {"type": "bool", "default": True},
            "mode": {"type": "str", "default": "0644"},
            "state": _STATE,
        },
    },
    "claim": {
        "type": "dict",
        "options": {"path": {"type": "str", "required": True}, "name": {"type": "str", "required": True}},
    },
    "owner": {"type": "str"},
    "group": {"type": "str"},
}

_TEMPORARY = ".rdm-provision-"
_MARK = _TEMPORARY + "made"  # in a directory that the module has made
_MARK_TEXT = b"Made by rdm-provision, which removes this directory when nothing else is left in it.\n"
_DIRECTORY_MODE = 0o755
_SHOWN_WHOLE = 8192  # characters of both sides of a file up to which a difference has all of them
_LINES = 100  # of a longer one's difference
_SECRET = "(secret)\n"  # noqa: S105  # what is shown instead of one


class Problem(Exception):  # noqa: N818  # one sentence for fail_json
    """What stands in the way, as one sentence."""


class Owner(NamedTuple):
    """Who owns what is written; -1 leaves it as it is."""

    uid: int
    gid: int


class Entry:
    """One path as it is and as it shall be; None for the data means that there is no such file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.before, self.old_mode, self.old_owner = _read(path)
        self.after = self.before
        self.mode: Optional[int] = None  # None: as it is
        self.owner = Owner(-1, -1)
        self.secret = False

    @property
    def mode_changes(self) -> bool:
        """Whether the permissions or the owner of a file that stays are to change."""
        if self.before is None or self.after is None:
            return False
        return (self.mode is not None and self.mode != self.old_mode) or _differs(self.owner, self.old_owner)

    @property
    def changes(self) -> bool:
        """Whether anything is to be done here."""
        return self.before != self.after or self.mode_changes

    def diff(self) -> Dict[str, str]:
        """Return the difference for a person; never the contents of a secret."""
        shown = {"before_header": self.path, "after_header": self.path}
        shown["before"] = self._shown(self.before)
        shown["after"] = self._shown(self.after)
        if self.secret and self.before is not None and self.after is not None and self.before != self.after:
            shown["after"] = "(another secret)\n"
        if self.mode_changes and self.mode is not None and self.mode != self.old_mode:
            shown["before_header"] += " (mode {0:04o})".format(self.old_mode)
            shown["after_header"] += " (mode {0:04o})".format(self.mode)
        # Ansible keeps it for every node, and some files have a line for every node.
        whole = len(shown["before"]) + len(shown["after"]) <= _SHOWN_WHOLE
        return shown if whole else {"prepared": _prepared(**shown)}

    def _shown(self, data: Optional[bytes]) -> str:
        if data is None:
            return ""
        return _SECRET if self.secret else data.decode("utf-8", "replace")


class Plan:
    """All that is to be done, worked out before the first change.

    Args:
        params: the module's parameters.
    """

    def __init__(self, params: Dict[str, Any]) -> None:
        self.owner = _owner(params["owner"], params["group"])
        self.entries: Dict[str, Entry] = {}
        self.made: List[str] = []
        self.moded: List[str] = []
        self.removed: List[str] = []
        self.kept: List[str] = []
        self._modes: Dict[str, int] = {}
        self._marked: List[str] = []
        for item in params["directories"]:
            if item["state"] == "present":
                self._make(_absolute(item["path"]), None if item["mode"] is None else _mode(item["mode"]))
        for item in params["files"]:
            self._file(item)
        for item in params["blocks"]:
            self._block(item)
        # The deepest first, so that a directory whose only content is another one of ours goes as well.
        absent = {_absolute(item["path"]) for item in params["directories"] if item["state"] == "absent"}
        for path in sorted(absent, key=len, reverse=True):
            self._remove(path)

    def changes(self) -> List[str]:
        """Return the paths that change, in the order in which apply() goes."""
        files = [entry.path for entry in self.entries.values() if entry.changes]
        return self.made + self.moded + files + self.removed

    def diff(self) -> List[Dict[str, str]]:
        """Return one difference for each change."""
        shown = []
        for path in self.made:
            shown.append(_difference(path, "", "directory, mode {0:04o}\n".format(self._modes[path])))
        for path in self.moded:
            old = "directory, mode {0:04o}\n".format(stat.S_IMODE(os.stat(path).st_mode))
            shown.append(_difference(path, old, "directory, mode {0:04o}\n".format(self._modes[path])))
        shown += [entry.diff() for entry in self.entries.values() if entry.changes]
        shown += [_difference(path, "directory\n", "") for path in self.removed]
        return shown

    def apply(self, module: Any) -> None:
        """Do it. An OSError names the path that it is about."""
        for path in self.made:
            os.mkdir(path)
            if path in self._marked:
                _mark(path, self.owner)
            os.chmod(path, self._modes[path])
            os.chown(path, *self.owner)
        for path in self.moded:
            os.chmod(path, self._modes[path])
            os.chown(path, *self.owner)
        for entry in self.entries.values():
            if entry.after is None:
                if entry.before is not None:
                    os.unlink(entry.path)
            elif entry.before != entry.after:
                _replace(module, entry)
            elif entry.changes:
                if entry.mode is not None:
                    os.chmod(entry.path, entry.mode)
                os.chown(entry.path, *entry.owner)
        for path in self.removed:
            for name in os.listdir(path):
                # The mark, or left by a run that was killed while it wrote.
                if name.startswith(_TEMPORARY):
                    os.unlink(os.path.join(path, name))
            os.rmdir(path)

    def _make(self, path: str, mode: Optional[int]) -> None:
        if os.path.isdir(path):
            now = os.stat(path)
            if mode is None:
                mode = _DIRECTORY_MODE if _is_marked(path) else stat.S_IMODE(now.st_mode)
            self._modes[path] = mode
            if stat.S_IMODE(now.st_mode) != mode or _differs(self.owner, Owner(now.st_uid, now.st_gid)):
                self.moded.append(path)
            return
        self._make_new(path, _DIRECTORY_MODE if mode is None else mode)
        self._marked.append(path)

    def _make_new(self, path: str, mode: int) -> None:
        self._modes[path] = mode
        if path in self.made:  # above one that was named earlier
            return
        if os.path.lexists(path):
            raise Problem("{0} is not a directory".format(path))
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
        entry.owner = self.owner
        self._need_parent(path)

    def _block(self, item: Dict[str, Any]) -> None:
        path = os.path.realpath(_absolute(item["path"]))
        entry = self._entry(path)
        try:
            if item["state"] == "absent":
                if entry.after is not None:
                    entry.after = drop_block(entry.after, item["name"])
            elif entry.after is not None or item["create"]:
                if entry.after is None:
                    self._need_parent(path)
                    entry.mode = _mode(item["mode"])
                    entry.owner = self.owner
                entry.after = put_block(entry.after, item["name"], item["content"], item["insert"] == "start")
        except BlockError as error:
            raise Problem("{0}: {1}".format(path, error)) from error

    def _remove(self, path: str) -> None:
        if not os.path.lexists(path):
            return
        if os.path.islink(path) or not os.path.isdir(path):
            raise Problem("{0} is not a directory".format(path))
        gone = {entry.path for entry in self.entries.values() if entry.after is None} | set(self.removed)
        left = [
            name
            for name in os.listdir(path)
            if os.path.join(path, name) not in gone and not name.startswith(_TEMPORARY)
        ]
        (self.removed if _is_marked(path) and not left else self.kept).append(path)

    def _entry(self, path: str) -> Entry:
        if path not in self.entries:
            self.entries[path] = Entry(path)
        return self.entries[path]

    def _need_parent(self, path: str) -> None:
        parent = os.path.dirname(path)
        if parent not in self.made and not os.path.isdir(parent):
            raise Problem("{0} cannot be written: there is no directory {1}".format(path, parent))


def _claimed(params: Dict[str, Any]) -> Dict[str, Any]:
    """Return the parameters with the claim among the files, or without what is in a directory of others."""
    claim = params["claim"]
    if not claim:
        return params
    path = _absolute(claim["path"])
    home = os.path.dirname(path)
    before = _read(path)[0]
    holder = (before or b"").decode("utf-8", "replace").strip()
    entries = params["directories"] + params["files"]
    writes = any(item["state"] == "present" for item in entries)
    if holder and holder != claim["name"]:
        if writes:
            raise Problem("{0} belongs to the cluster {1}: choose another directory".format(home, holder))
        return dict(params, directories=[], files=[])
    goes = {_absolute(item["path"]) for item in entries} | {path}
    if not writes and (before is None or home not in goes or not _only(home, goes)):
        return params
    mine = {**dict.fromkeys(_CONTENTS), "path": path, "content": claim["name"] + "\n", "mode": "0644"}
    return dict(params, files=params["files"] + [dict(mine, state="present" if writes else "absent")])


def _only(directory: str, goes: "set[str]") -> bool:
    """Return whether all that is in a directory, and in those below it, is among what goes."""
    for entry in os.scandir(directory):
        if entry.name.startswith(_TEMPORARY):
            continue
        below = entry.is_dir(follow_symlinks=False)
        if entry.path not in goes or (below and not _only(entry.path, goes)):
            return False
    return True


def _prepared(before: str, after: str, before_header: str, after_header: str) -> str:
    """Return the first of the lines that differ, and how many more there are."""
    sides = [text.splitlines(True) for text in (before, after)]
    lines = list(difflib.unified_diff(sides[0], sides[1], before_header, after_header, n=2))
    if not lines:  # other permissions
        lines = ["--- {0}\n".format(before_header), "+++ {0}\n".format(after_header)]
    ended = [line if line.endswith("\n") else line + "\n" for line in lines[:_LINES]]
    more = len(lines) - len(ended)
    return "".join(ended) + ("({0} more lines)\n".format(more) if more > 0 else "")


def _difference(path: str, before: str, after: str) -> Dict[str, str]:
    return {"before_header": path, "after_header": path, "before": before, "after": after}


def _differs(wanted: Owner, now: Owner) -> bool:
    return wanted.uid not in (-1, now.uid) or wanted.gid not in (-1, now.gid)


def _is_marked(path: str) -> bool:
    """Return whether this module made the directory."""
    return os.path.lexists(os.path.join(path, _MARK))


def _mark(path: str, owner: Owner) -> None:
    """Note in a new directory that this module made it."""
    with open(os.path.join(path, _MARK), "xb") as stream:
        stream.write(_MARK_TEXT)
        os.fchmod(stream.fileno(), 0o644)
        os.fchown(stream.fileno(), *owner)


def _content(path: str, item: Dict[str, Any]) -> str:
    """Return what a file shall hold."""
    if item["ssh_client_config"] is None:
        return str(item["content"] if item["secret_content"] is None else item["secret_content"])
    try:
        return ssh_client_config(**item["ssh_client_config"])
    except ValueError as error:
        raise Problem("{0}: {1}".format(path, error)) from error


def _absolute(given: str) -> str:
    path = os.path.expanduser(given)
    if not os.path.isabs(path) or "\0" in path:
        raise Problem("{0!r} is not an absolute path".format(given))
    return os.path.normpath(path)


def _mode(given: str) -> int:
    if not re.fullmatch(r"[0-7]{3,4}", given):
        raise Problem("{0!r} is no mode: give it in octal, such as '0644'".format(given))
    return int(given, 8)


def _owner(owner: Optional[str], group: Optional[str]) -> Owner:
    try:
        return Owner(
            pwd.getpwnam(owner).pw_uid if owner else -1,
            grp.getgrnam(group).gr_gid if group else -1,
        )
    except KeyError as error:
        raise Problem("no such owner or group: {0}".format(error.args[0])) from error


def _read(path: str) -> "tuple[Optional[bytes], int, Owner]":
    """Return what a file holds, its mode and its owner; None when there is none."""
    try:
        now = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None, 0, Owner(-1, -1)
    if not stat.S_ISREG(now.st_mode):
        raise Problem("{0} is not a regular file".format(path))
    with open(path, "rb") as stream:
        return stream.read(), stat.S_IMODE(now.st_mode), Owner(now.st_uid, now.st_gid)


def _replace(module: Any, entry: Entry) -> None:
    """Put the new file in the old one's place in one step; it never has more permissions than it shall."""
    handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=os.path.dirname(entry.path))
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(entry.after or b"")
            stream.flush()
            if entry.before is not None:
                _keep_owner(stream.fileno(), entry.old_owner)
            os.fchown(stream.fileno(), *entry.owner)
            os.fchmod(stream.fileno(), entry.old_mode if entry.mode is None else entry.mode)
            os.fsync(stream.fileno())
        os.replace(temporary, entry.path)
    except BaseException:
        os.unlink(temporary)
        raise
    if module.selinux_enabled():
        module.set_default_selinux_context(entry.path, False)


def _keep_owner(handle: int, owner: Owner) -> None:
    """Give the new file the old one's owner, where that is not the writer already."""
    now = os.fstat(handle)
    if (now.st_uid, now.st_gid) != owner:
        os.fchown(handle, *owner)


def main() -> None:
    """Plan, then apply unless in check mode."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        plan = Plan(_claimed(module.params))
        result: Dict[str, Any] = {"paths": plan.changes(), "made": plan.made, "kept": plan.kept}
        result["changed"] = bool(result["paths"])
        if module._diff:
            result["diff"] = plan.diff()
        if not module.check_mode:
            plan.apply(module)
    except Problem as problem:
        module.fail_json(msg=str(problem), **echo(module))
    except OSError as error:
        where = error.filename or "cannot write"
        module.fail_json(msg="{0}: {1}".format(where, error.strerror or error), **echo(module))
    module.exit_json(**result, **echo(module))


if __name__ == "__main__":
    main()
