# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of rdm.provision.image_archive: copy an archive to the nodes that need it."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import size_text
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_cache import (
    cached_index,
    default_cache_dir,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import (
    ArchiveMissing,
    inspection,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import NOTED
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.upload_directory import (
    upload,
    upload_directory,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import run_cache

MODULE = "rdm.provision.image_archive"
PUT_IT_THERE = "put it there, or correct its path"


class ActionModule(ActionBase):
    """Read the archive on the controller, and copy and load it on the node only if the node needs it."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module, and once more if the archive has to be copied."""
        task_vars = task_vars or {}
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        brought = arguments.pop("brought", None)
        if brought:
            return self._load_brought(brought, arguments, task_vars)
        if boolean(arguments.get("remote_src", True), strict=False):
            if arguments.get("state") == "inspected":
                return self._inspect(arguments, task_vars)
            return self._module(arguments, task_vars)
        if not arguments.get("path"):
            raise AnsibleActionFail("path is missing: where is the archive?")
        path = self._local_path(str(arguments["path"]), task_vars)
        state = arguments.get("state") or "present"
        cache_dir = str(arguments.get("cache_dir") or default_cache_dir())
        try:
            index = cached_index(path, str(arguments.get("sha256") or ""), cache_dir, state == "absent")
        except NodeError as problem:
            what = _on_the_controller(str(problem), path)
            missing = isinstance(problem, ArchiveMissing)
            if missing and state == "absent":
                self._display.warning(f"{what}, so its images cannot be identified and stay")
                return {"changed": False, "actions": [], "copy_needed": False}
            hint = PUT_IT_THERE if missing else problem.hint
            if state == "inspected":
                return inspection(path, what, hint)
            raise AnsibleActionFail(NodeError(what, hint).sentence) from None
        arguments.update(path=path, remote_src=False, copy=None, index=index.to_json())
        result = self._module(arguments, task_vars)
        if self._task.check_mode or result.get("failed") or not result.get("copy_needed"):
            return result
        return self._copy_and_load(path, arguments, task_vars)

    def _module(self, arguments: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(
            module_name=MODULE, module_args=arguments, task_vars=task_vars
        )
        return result

    def _inspect(self, arguments: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Inspect an archive on the node; of all nodes that have the same file, the first one reads it."""
        found = self._module({**arguments, "read": False}, task_vars)
        file = str(found.pop("unread", ""))
        if not file:
            return found
        own: dict[str, Any] = {}

        def read() -> dict[str, Any] | None:
            own.update(self._module({**arguments, "file": file}, task_vars))
            return own.pop("index", None)

        index = run_cache.once(f"archive-{hashlib.sha256(file.encode()).hexdigest()}", read)
        # If the first node could not read it, the reason may be that node.
        return own or self._module(
            {**arguments, **({"index": index, "file": file} if index else {})}, task_vars
        )

    def _load_brought(
        self, brought: dict[str, Any], arguments: dict[str, Any], task_vars: dict[str, Any]
    ) -> dict[str, Any]:
        """Load an archive that came from another node; see plugins/modules/image_distribution.py."""
        copy = str(brought.get("copy") or "")
        remove = " && ".join(self._connection._shell.remove(path) for path in (copy, copy + NOTED))
        if brought.get("problem"):
            if copy:
                self._low_level_execute_command(remove)
            raise AnsibleActionFail(str(brought["problem"]))
        index = dict(brought["index"])
        if not brought.get("whole"):
            # Each piece was verified by its digest, and pieces that the node does not need may be missing.
            index["sha256"] = str(brought.get("sha256") or "")
        # The archive is kept for its other images: of an OCI layout, an engine loads only one at a time.
        keep = bool(brought.get("keep"))
        arguments.update(remote_src=False, copy=copy, index=index, remove_copy=not keep)
        result = self._module(arguments, task_vars)
        # If loading failed, the pieces are kept for the next run.
        if result.get("failed") and brought.get("whole") and not keep:
            self._low_level_execute_command(remove)
        return result

    def _local_path(self, path: str, task_vars: dict[str, Any]) -> str:
        return os.path.join(task_vars.get("inventory_dir") or os.getcwd(), os.path.expanduser(path))

    def _copy_and_load(
        self, path: str, arguments: dict[str, Any], task_vars: dict[str, Any]
    ) -> dict[str, Any]:
        """Copy the archive to the node, run the module on the copy, and always remove it."""
        copy = self._remote_copy_path(path, task_vars)
        try:
            try:
                upload(self._connection, path, copy)
            except AnsibleError as error:
                size = size_text(os.path.getsize(path))
                raise AnsibleActionFail(
                    f"{path} could not be copied to {copy} on the node (is there room for {size}?): {error}"
                ) from error
            self._fixup_perms2([self._connection._shell.tmpdir, copy])
            return self._module({**arguments, "copy": copy}, task_vars)
        finally:
            self._low_level_execute_command(self._connection._shell.remove(copy), sudoable=False)
            self._remove_tmp_path(self._connection._shell.tmpdir)

    def _remote_copy_path(self, path: str, task_vars: dict[str, Any]) -> str:
        """Return the path of the copy on the node.

        The name is the same in every run, so that a later run replaces the copy of a killed one; it differs
        between nodes, which may share a home directory.
        """
        shell = self._connection._shell
        if shell.tmpdir is None:
            self._make_tmp_path()
        if self._is_become_unprivileged():
            return str(shell.join_path(shell.tmpdir, "image-archive"))
        node = f"{task_vars.get('inventory_hostname')}\0{path}"
        name = "rdm-image-" + hashlib.sha256(node.encode()).hexdigest()[:16]
        return str(shell.join_path(upload_directory(self), name))


def _on_the_controller(problem: str, path: str) -> str:
    """Return the problem of an archive, with its location."""
    if problem.startswith(path):
        return f"{path} on the controller{problem.removeprefix(path)}"
    return f"on the controller, {problem}"
