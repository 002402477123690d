# SPDX-License-Identifier: GPL-3.0-or-later
"""The origin of a cluster, from its files on a node.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from typing import Dict

from ansible_collections.rdm.provision.plugins.module_utils.base.host import read_text
from ansible_collections.rdm.provision.plugins.module_utils.base.local_path import local_path

_AUTHORITY = re.compile(r"^@cert-authority \* ssh-ed25519 (\S+)", re.MULTILINE)
_MY_IP = re.compile(r"^MY_IP=(\S+)$", re.MULTILINE)


def origin(config_dir: str, container_dir: str) -> Dict[str, str]:
    """Return the origin of a cluster's files; a value is empty if its file is missing.

    Args:
        config_dir: the directory of the cluster's files.
        container_dir: the directory of the files that its container reads.

    Returns:
        `authority`, the fingerprint of the key that signs its host keys; `my_ip`, the node's address.
    """
    authority = _AUTHORITY.search(read_text(os.path.join(local_path(container_dir), "ssh", "known_hosts")))
    my_ip = _MY_IP.search(read_text(os.path.join(local_path(config_dir), "env")))
    return {
        "authority": _fingerprint(authority.group(1)) if authority else "",
        "my_ip": my_ip.group(1) if my_ip else "",
    }


def origin_of(cluster: str, config_dir: str) -> Dict[str, str]:
    """Return the origin of a cluster's files in a directory; empty for another cluster's, or none."""
    owner = read_text(os.path.join(local_path(config_dir), "cluster")).strip()
    return origin(config_dir, config_dir) if owner == cluster else {}


def _fingerprint(key: str) -> str:
    """Return the fingerprint of a public key, as `ssh-keygen -l` prints it; empty if it is not a key."""
    try:
        blob = base64.b64decode(key, validate=True)
    except (ValueError, binascii.Error):
        return ""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
