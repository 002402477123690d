# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfer large data files to many nodes, from node to node; see plugins/modules/data_distribution.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.rdm.provision.plugins.action.job_data import MODULE, digest_once, files
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import ArchiveIndex
from ansible_collections.rdm.provision.plugins.module_utils.images.joined_files import layout
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.remote_executor import (
    RemoteExecutor,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.image_transfer import SMALLEST
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.peer_transfer import (
    READ_BYTES,
    READ_S,
    Transfer,
    call_all,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.image_list import distribution_problems
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.role_variables import variable_problems
from ansible_collections.rdm.provision.plugins.plugin_utils.jobs.data_sources import (
    conflicts,
    fetched,
    holders,
    parts,
    source_nodes,
    to_hash,
    without_directory,
)


class ActionModule(Decision):
    """Finds the files to transfer from node to node, and transfers them."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return which node has got which file."""
        chosen = {
            "images_distribution": options["distribution"],
            "images_network": options["network"],
            "images_port": options["port"],
            "images_bandwidth": options["bandwidth"],
        }
        node = str(variables["inventory_hostname"])
        if problems := [*variable_problems(node, chosen), *distribution_problems(node, chosen)]:
            raise PreconditionFailed(problems)
        if options["from_nodes"]:
            return self._from_nodes(options, variables)
        result: dict[str, Any] = {"nodes": {}, "sent": {}}
        # Not by default, since the transfer is not encrypted.
        if options["distribution"] != "peers":
            return result
        source = Path(options["source"]).absolute()
        if not source.is_dir():
            raise AnsibleActionFail(f"there is no directory {source} on the controller")
        sizes = {path: (source / path).stat().st_size for path in files(source)}
        large = {path: size for path, size in sizes.items() if size >= SMALLEST}
        if self._task.check_mode or len(options["directories"]) < 2 or not large:
            return result
        executor = RemoteExecutor(self, variables)
        arguments = {
            str(name): {
                "source": str(source),
                "directory": directory,
                "folder": options["folder"],
                "sizes": large,
                "by_size": True,
            }
            for name, directory in options["directories"].items()
        }
        # A node that does not answer gets a direct copy later, whose failure says why.
        answers, _problems = call_all(executor, MODULE, arguments, int(variables["ansible_forks"]))
        for path, size in large.items():
            # In the order of the inventory: a later run has the same source, and the others continue.
            lacking = {
                name: {"size": size} for name in arguments if path in answers.get(name, {}).get("needed", ())
            }
            if lacking:
                self._bring(executor, options, variables, source / path, lacking, path, result)
        return result

    def _bring(
        self,
        executor: RemoteExecutor,
        options: dict[str, Any],
        variables: dict[str, Any],
        file: Path,
        lacking: Mapping[str, Mapping[str, Any]],
        path: str,
        result: dict[str, Any],
    ) -> None:
        """Transfer one file to several nodes, and add those that have it to `result`."""
        index = ArchiveIndex("none", file.stat().st_size, "", 0, False, [])
        item = {"path": str(file), "remote_src": False}
        transfer = Transfer(self, executor, options, variables, item, lacking, index)
        if len(lacking) == 1:
            transfer.forget()  # an earlier run may have left parts of it
            return
        copies, _problems = transfer.outcome(result, "gets it directly")
        if transfer.sha256:
            digest_once(file, transfer.sha256)
        for name, one in copies.items():
            result["nodes"].setdefault(name, {})[path] = one["copy"]

    def _from_nodes(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Compare the files of nodes with those of all nodes, and transfer what is missing."""
        directory = options["source"].rstrip("/")
        chosen = options["from_nodes"]
        nodes, problems = source_nodes(chosen, variables["groups"])
        _require(problems)
        executor = RemoteExecutor(self, variables)
        forks = int(variables["ansible_forks"])

        def query(arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
            # A file of the destination below / is one of the directory of a source.
            whole = {
                name: {"source": directory, "directory": "/", "folder": directory, **own}
                for name, own in arguments.items()
            }
            answers, failures = call_all(executor, MODULE, whole, forks, READ_S)
            _require([Problem(name, "", why, "") for name, why in failures.items()])
            return answers

        answers = query({name: {"listed": True} for name in nodes})
        listed = {name: answers[name]["sizes"] for name in nodes}
        _require(without_directory(directory, chosen, listed))
        listed = {name: files for name, files in listed.items() if files}
        _require(conflicts(directory, listed))
        found = holders(listed)
        sizes = {path: listed[own[0]][path] for path, own in found.items()}
        destinations = {
            str(name): {"directory": jobs, "folder": options["folder"], "sizes": sizes}
            for name, jobs in options["directories"].items()
        }
        compared = query({name: {**own, "by_size": True} for name, own in destinations.items()})
        missing = {name: set(answer["needed"]) for name, answer in compared.items()}
        same_size = {
            name: {**own, "sizes": {path: size for path, size in sizes.items() if path not in missing[name]}}
            for name, own in destinations.items()
        }
        present = _digests(query, same_size)
        compare = to_hash(found, present)
        digests = _digests(
            query, {name: {"sizes": {path: sizes[path] for path in paths}} for name, paths in compare.items()}
        )
        _require(conflicts(directory, digests))
        needed = {
            name: [
                path
                for path in sizes
                if path not in files or digests[found[path][0]].get(path) != files[path]
            ]
            for name, files in present.items()
        }
        result: dict[str, Any] = {"nodes": {}, "sent": {}}
        for name, paths in needed.items():
            own = {path: [0, sizes[path]] for path in paths if name in found[path]}
            result["nodes"][name] = {"needed": paths, "own": own, "copies": {}, "problem": ""}
        if not self._task.check_mode:
            lacking = fetched(found, needed)
            for name in filter(lacking.get, listed):
                files = {path: sizes[path] for path, own in found.items() if own[0] == name}
                self._send(executor, options, variables, (name, directory), files, lacking[name], result)
        return result

    def _send(
        self,
        executor: RemoteExecutor,
        options: dict[str, Any],
        variables: dict[str, Any],
        source: tuple[str, str],
        files: Mapping[str, int],
        lacking: Mapping[str, set[str]],
        result: dict[str, Any],
    ) -> None:
        """Transfer the files of one node to others, and add to `result` where they are, or why not."""
        name, directory = source
        hosts = {other: {"present_members": sorted(files.keys() - own)} for other, own in lacking.items()}
        item = {"path": directory, "files": files}
        sent: dict[str, int] = {}
        transfer = Transfer(self, executor, options, variables, item, {name: {}, **hosts})
        copies, problems = transfer.outcome({"sent": sent})
        result["sent"][name] = sent.get(directory, 0)
        spans = layout(files)
        for other, one in copies.items():
            own = {path: [spans[path][0], files[path]] for path in lacking[other]}
            result["nodes"][other]["copies"][one["copy"]] = own
        for other, why in problems.items():
            # The node stores what other sources have sent, and fails then.
            earlier = result["nodes"][other]["problem"]
            result["nodes"][other]["problem"] = f"{earlier}; {why}" if earlier else why


def _digests(
    query: Callable[[Mapping[str, Mapping[str, Any]]], Mapping[str, Any]],
    nodes: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, str]]:
    """Return the digests of files: node -> path -> the digests of the file's parts, joined.

    A call hashes `READ_BYTES` bytes at most, so its timeout limits the progress and not the whole. A file
    that is gone, or has another size by now, is left out.

    Args:
        query: returns each node's result for its arguments.
        nodes: node -> its arguments, with the `sizes` of the files.
    """
    digests = {name: dict.fromkeys(own["sizes"], "") for name, own in nodes.items()}
    for turn in zip_longest(*(parts(own["sizes"], READ_BYTES) for own in nodes.values())):
        queries = {
            name: {**own, "sizes": {path: own["sizes"][path] for path in hashed}, "hashed": hashed}
            for (name, own), hashed in zip(nodes.items(), turn, strict=True)
            if hashed
        }
        for name, answer in query(queries).items():
            for path in digests[name].keys() & queries[name]["hashed"]:
                if part := answer["digests"].get(path):
                    digests[name][path] += part
                else:
                    del digests[name][path]
    return digests


def _require(problems: list[Problem]) -> None:
    """Raise PreconditionFailed if there are problems."""
    if problems:
        raise PreconditionFailed(problems)
