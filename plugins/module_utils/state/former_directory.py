# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes the cluster's files on a node from a directory that is no longer the configured one.

The directory changes with rdm_config_dir or, without root, with the node's host name, which is part of it.
The container's mount shows the former one. Nodes may share a home, so nothing else shows which node owns a
directory.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os
from typing import Any, Mapping, Optional

from ansible_collections.rdm.provision.plugins.module_utils.base.file_plan import CONTENTS, Plan
from ansible_collections.rdm.provision.plugins.module_utils.base.host import read_text
from ansible_collections.rdm.provision.plugins.module_utils.constants import CONFIG_DIR

_SSH = (
    *("id_ed25519", "ssh_host_ed25519_key", "ssh_host_ed25519_key-cert.pub", "authorized_keys"),
    *("known_hosts", "config", "sshd_config", "start", "hosts"),
)
FILES = (
    *("cluster", "env", "nodes", "state.json", "receipt", "job/hostfile"),
    *("ssh/" + name for name in _SSH),
)
"""The files that roles write there."""
# Files of jobs stay, and then their directory, too.
_DIRECTORIES = ("", "ssh", "job", "jobs")


def directory_of(container: Mapping[str, Any]) -> str:
    """Return the node's directory that a container mounts as its configuration; empty for none."""
    mounts = container.get("Mounts") or []
    return next((str(one["Source"]) for one in mounts if one.get("Destination") == CONFIG_DIR), "")


def removal(directory: str, cluster: str) -> Optional[Plan]:
    """Return the plan that removes the cluster's files in a directory; None if it is not this cluster's."""
    if not directory or os.path.islink(directory) or not os.path.isdir(directory):
        return None
    if read_text(os.path.join(directory, "cluster")).strip() != cluster:
        return None
    names = [os.path.join(directory, name).rstrip("/") for name in _DIRECTORIES]
    gone = [{"path": name, "mode": None, "state": "absent"} for name in names]
    absent = {**dict.fromkeys(CONTENTS), "mode": "0644", "state": "absent"}
    files = [{**absent, "path": os.path.join(directory, name)} for name in FILES]
    return Plan({"directories": gone, "files": files, "blocks": []})
