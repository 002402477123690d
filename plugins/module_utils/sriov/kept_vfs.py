# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node keeps of its virtual functions, so that rdm_sriov/boot.py makes them again when it starts.

The kernel forgets all VFs with a restart. The files belong to the node, and not to a cluster's directory: two
clusters cannot share a card.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.sriov.decision import Wanted
from ansible_collections.rdm.provision.plugins.module_utils.sriov.functions import VfProblem

DIRECTORY = "/etc/rdm-sriov"
PROGRAM = "/usr/local/lib/rdm-sriov/rdm-sriov-vf"
UNIT = "rdm-sriov-vf.service"
UNIT_DIRECTORY = "/etc/systemd/system"

FILE_NAME = "vfs.json"

_WANTED_BY = "multi-user.target"

_UNIT = """\
# Written by rdm-provision.
[Unit]
Description=Virtual functions of the container network
# Containers that the engine starts again need them.
Before=docker.service rdm-sriov.service
After=systemd-modules-load.service openibd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={python} {program}
TimeoutStartSec=900

[Install]
WantedBy={wanted_by}
"""

Files = Dict[str, Tuple[bytes, int]]
"""Path -> content and permissions."""


class Function(NamedTuple):
    """A PF that is in this node's keeping.

    Attributes:
        pci: its PCI address, by which it is found whatever its interface is called.
        made: whether its VFs were made here, and not found.
        wanted: how it shall be.
    """

    pci: str
    made: bool
    wanted: Wanted


class Kept(NamedTuple):
    """All of them, and whose they are; an empty cluster is nobody."""

    cluster: str
    functions: Tuple[Function, ...]


NOTHING = Kept("", ())


def read(directory: str) -> Kept:
    """Return what a node keeps.

    Raises:
        VfProblem: the file is there and cannot be read.
    """
    path = os.path.join(directory, FILE_NAME)
    try:
        with open(path, encoding="utf-8") as stream:
            found: Any = json.load(stream)
        functions = [
            Function(one["pci"], bool(one["made"]), Wanted(**{key: one[key] for key in Wanted._fields}))
            for one in found["functions"]
        ]
        return Kept(str(found["cluster"]), tuple(functions))
    except FileNotFoundError:
        return NOTHING
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VfProblem(
            "{0} does not tell any more which VFs were made here ({1})".format(path, error or "cut off")
        ) from None


def files(directory: str, kept: Kept, program: bytes) -> Files:
    """Return the files that bring back what is kept when the node starts.

    Args:
        directory: where it is written down.
        kept: what is to be there.
        program: that makes it, packed from rdm_sriov/boot.py.
    """
    functions = [
        {"pci": one.pci, "made": one.made, **one.wanted._asdict(), "addresses": list(one.wanted.addresses)}
        for one in kept.functions
    ]
    text = json.dumps({"cluster": kept.cluster, "functions": functions}, indent=1) + "\n"
    unit = _UNIT.format(python=sys.executable, program=PROGRAM, wanted_by=_WANTED_BY)
    return {
        os.path.join(directory, FILE_NAME): (text.encode(), 0o644),
        PROGRAM: (program, 0o755),
        os.path.join(UNIT_DIRECTORY, UNIT): (unit.encode(), 0o644),
    }


def enabled_link() -> str:
    """Return the link that is there when systemd starts the program."""
    return os.path.join(UNIT_DIRECTORY, _WANTED_BY + ".wants", UNIT)


def paths() -> List[str]:
    """Return what is to be there, where systemd runs, so that VFs are restored."""
    return [PROGRAM, os.path.join(DIRECTORY, FILE_NAME), enabled_link()]


@contextlib.contextmanager
def alone(directory: str) -> Iterator[None]:
    """Let one process at a time change VFs."""
    os.makedirs(directory, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
