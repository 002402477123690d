# SPDX-License-Identifier: GPL-3.0-or-later
"""Copy a directory of data to the jobs of a node; see plugins/modules/job_data.py."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import NOTED
from ansible_collections.rdm.provision.plugins.modules.job_data import digest
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.upload_directory import upload
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import run_cache

MODULE = "rdm.provision.job_data"


class ActionModule(ActionBase):
    """The action; it copies one file at a time, so that only one needs room twice."""

    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Compare the files, and copy those that are missing or differ."""
        variables = task_vars or {}
        super().run(tmp, variables)
        arguments = dict(self._task.args)
        brought = arguments.pop("brought", None) or {}
        if boolean(arguments.get("remote_src") or False):
            return self._store(brought, arguments, variables)
        source = Path(os.path.expanduser(str(arguments.get("source") or "")))
        if not source.is_dir():
            raise AnsibleActionFail(f"there is no directory {source} on the controller")
        sizes = {path: (source / path).stat().st_size for path in files(source)}
        seen = self._module({**arguments, "sizes": sizes}, variables)
        if seen.get("failed"):
            return seen
        needed = [*seen["needed"], *others(source, seen["digests"])]
        result: dict[str, Any] = {"changed": bool(needed), "copied": needed}
        if self._task.diff:
            result["diff"] = _diff(needed)
        if needed and not self._task.check_mode:
            failed = self._copy(source, needed, brought, arguments, variables)
            if failed:
                return failed
        return result

    def _store(
        self, brought: dict[str, Any], arguments: dict[str, Any], variables: dict[str, Any]
    ) -> dict[str, Any]:
        """Store what came from other nodes, and what is in this node's own directory."""
        if not brought:
            raise AnsibleActionFail(
                f"{arguments['source']} is on nodes, and files go from node to node only where the "
                "inventory has a group master: copy the directory to the controller"
            )
        needed = brought["needed"]
        result: dict[str, Any] = {"changed": bool(needed), "copied": needed}
        if self._task.diff:
            result["diff"] = _diff(needed)
        if not needed or self._task.check_mode:
            return result
        stored: list[dict[str, Any]] = [
            {"parts": parts, "copy": copy, "remove_copy": True} for copy, parts in brought["copies"].items()
        ]
        if brought["own"]:
            stored.append({"parts": brought["own"]})
        for what in stored:
            done = self._module({**arguments, **what}, variables)
            if done.get("failed"):
                return done
        # The pieces of what has not arrived completely are kept for the next run.
        return {**result, "failed": True, "msg": brought["problem"]} if brought["problem"] else result

    def _copy(
        self,
        source: Path,
        needed: list[str],
        brought: dict[str, str],
        arguments: dict[str, Any],
        variables: dict[str, Any],
    ) -> dict[str, Any]:
        """Copy files, or use those that came from other nodes; return the module's result if it failed."""
        if self._connection._shell.tmpdir is None:
            self._make_tmp_path()
        copy = self._connection._shell.join_path(self._connection._shell.tmpdir, "data")
        try:
            for path in needed:
                if path in brought:
                    own = digest_once(source / path)
                    stored = {"file": path, "copy": brought[path], "remove_copy": True, "digest": own}
                    done = self._module({**arguments, **stored}, variables)
                    if not done.get("failed"):
                        continue
                    self._remove(brought[path])
                    self._display.warning(f"{path} is copied from the controller, since {done['msg']}")
                try:
                    upload(self._connection, str(source / path), copy)
                except AnsibleError as error:
                    raise AnsibleActionFail(
                        f"{source / path} could not be copied to {copy} on the node: {error}"
                    ) from error
                self._fixup_perms2([self._connection._shell.tmpdir, copy])
                done = self._module({**arguments, "file": path, "copy": copy}, variables)
                if done.get("failed"):
                    return done
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return {}

    def _remove(self, copy: str) -> None:
        shell = self._connection._shell
        self._low_level_execute_command(" && ".join(shell.remove(left) for left in (copy, copy + NOTED)))

    def _module(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(
            module_name=MODULE, module_args=arguments, task_vars=variables
        )
        return result


def _diff(needed: list[str]) -> dict[str, str]:
    return {"before": "", "after": "".join(f"{path}\n" for path in needed)}


def files(source: Path) -> Iterator[str]:
    """Yield the relative paths of the files below a directory; each linked directory is entered once."""
    entered: set[str] = set()
    for folder, inner, names in os.walk(source, followlinks=True):
        real = os.path.realpath(folder)
        if real in entered:
            inner.clear()
            continue
        entered.add(real)
        inner.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file():
                yield path.relative_to(source).as_posix()


def others(source: Path, digests: dict[str, str]) -> Iterator[str]:
    """Yield the files whose content differs from the node's; `digests` has its files' by relative path."""
    for path, theirs in digests.items():
        if digest_once(source / path) != theirs:
            yield path


def digest_once(path: Path, known: str = "") -> str:
    """Return the digest of a file; only the first process of a run reads the file, the others wait.

    Args:
        path: of the file.
        known: its digest, so that no process reads the file for it.
    """

    def compute() -> str:
        with path.open("rb") as stream:
            return digest(stream)

    name = f"data-{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]}"
    return str(run_cache.once(name, lambda: known or compute()))
