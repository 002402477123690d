# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of all nodes in a container's /etc/hosts.

The engine rewrites that file whenever the container starts. So a script in the container
(roles/container/files/hosts.sh) writes a block into it at each start, and again when nodes were added or
removed.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.ssh_config import parse_address_map
from ansible_collections.rdm.provision.plugins.module_utils.base.text_blocks import (
    BlockError,
    put_block,
    read_block,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI

_NAME = "nodes"
_SCRIPT = "/etc/rdm/ssh/hosts"
_TIMEOUT = 30.0  # seconds


def block(address_map: str) -> str:
    """Return the block with its markers.

    Args:
        address_map: lines `node MY_IP`.

    Raises:
        ValueError: the map is not well-formed.
    """
    pairs = [pair for pair in parse_address_map(address_map) if pair[0] != pair[1]]
    return put_block(None, _NAME, "".join("{1} {0}\n".format(*pair) for pair in pairs)).decode()


def found(container: Mapping[str, Any]) -> Optional[str]:
    """Return the block in a container's file, empty for none; None if the file cannot be read.

    Args:
        container: as the engine describes it. Only root can read the file.
    """
    try:
        with open(container.get("HostsPath") or "", "rb") as stream:
            here = read_block(stream.read(), _NAME)
    except OSError:
        return None
    except BlockError:
        return ""
    return here.decode("utf-8", "replace") + "\n" if here else ""


def write(api: DockerAPI, name: str) -> None:
    """Make a running container write its block.

    Raises:
        NodeError: the script failed.
        DockerProblem: the engine refuses.
    """
    result = api.exec(name, ["sh", _SCRIPT], _TIMEOUT, user="0")
    if result.exit_code:
        words = (result.stderr or result.stdout).decode("utf-8", "replace").strip()
        raise NodeError(
            "the names of the nodes cannot be written to /etc/hosts in the container {0}: {1}".format(
                name, words or "status {0}".format(result.exit_code)
            )
        )
