# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare an archive's file on the nodes before it goes from node to node: all get the file of the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import ObservedState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import DesiredState
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem

_HINT = "put the same file on all of them, or set images_distribution to direct"


def other_images(inspections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return which nodes' files have other images than the first one's, as a part of a sentence; "" for none.

    Args:
        inspections: node -> result of the module image_archive. Those without `storage` are left out: the
            archive is on the controller, or not needed.
    """
    images = {node: one["storage"]["images"] for node, one in inspections.items() if one.get("storage")}
    first = next(iter(images), "")
    others = [node for node, found in images.items() if found != images[first]]
    return f"has other images on {names(others)} than on {first}" if others else ""


def refused(path: str, inspections: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Return why nodes cannot pass on an archive, as at most one problem.

    Args:
        path: of the archive.
        inspections: as in `other_images`.
    """
    why = other_images(inspections)
    reason = f"{why}, and with images_distribution peers all would get the file of one node"
    return [Problem(None, path, reason, _HINT)] if why else []


def archive_files(wants: Mapping[str, DesiredState], facts: Mapping[str, ObservedState]) -> list[Problem]:
    """Report each archive to pass on that is not the same on all nodes that load it.

    Args:
        wants: node name -> its desired state.
        facts: node name -> its facts, with the inspections as `archives`.
    """
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for node, seen in facts.items():
        if wants[node].run.distribution == "peers":
            for one in seen.get("archives") or []:
                if one.get("storage"):
                    found.setdefault(str(one["path"]), {})[node] = one
    return [problem for path, inspections in found.items() for problem in refused(path, inspections)]
