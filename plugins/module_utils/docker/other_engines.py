# SPDX-License-Identifier: GPL-3.0-or-later
"""Further engines of a node, besides the one in use: a user's rootless one, and that of a Docker context.

A user's `docker ps` may show one of these. They are found from files; no engine is queried.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.host import read_json


def other_engines(user: dict[str, Any], used: str, run_root: str = "/run/user") -> list[dict[str, str]]:
    """Return the engines that a user may mean instead of the one in use.

    Args:
        user: `name`, `uid` and `home`.
        used: path of the socket in use.
        run_root: where users have their runtime directories.

    Returns:
        For each engine `kind` (`rootless` or `context`), `name` (the user's or the context's), `user`, and
        `address`: a path for a unix socket, else the full address.
    """
    found = []
    rootless = os.path.join(run_root, str(user["uid"]), "docker.sock")
    if _is_socket(rootless):
        found.append({"kind": "rootless", "name": user["name"], "address": rootless})
    context = current_context(os.path.join(user["home"], ".docker"))
    if context:
        found.append({"kind": "context", "name": context[0], "address": context[1]})
    taken = os.path.realpath(used)
    return [
        {**one, "user": user["name"]}
        for one in found
        if not one["address"].startswith("/") or os.path.realpath(one["address"]) != taken
    ]


def current_context(directory: str) -> tuple[str, str] | None:
    """Return name and address of the current context in a user's `.docker`; None for the default one."""
    name = read_json(os.path.join(directory, "config.json")).get("currentContext")
    if not isinstance(name, str) or name in ("", "default"):
        return None
    # The directory of a context is the digest of its name.
    digest = hashlib.sha256(name.encode()).hexdigest()
    meta = read_json(os.path.join(directory, "contexts", "meta", digest, "meta.json"))
    try:
        address = str(meta["Endpoints"]["docker"]["Host"])
    except (KeyError, TypeError):
        return None
    return name, address[len("unix://") :] if address.startswith("unix://") else address


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
