# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's record of its virtual functions, from which rdm_sriov/boot.py creates them again at boot.

The kernel forgets all VFs at a reboot. The files belong to the node, not to a cluster's directory: two
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

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.sriov.decision import DesiredPf

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


class KeptPf(NamedTuple):
    """A PF in the record.

    Attributes:
        pci: its PCI address, since its interface may get another name.
        made: whether we created its VFs, or found them.
        wanted: its desired state.
    """

    pci: str
    made: bool
    wanted: DesiredPf


class KeptVfs(NamedTuple):
    """The record: the cluster that owns it (empty for none), and its PFs."""

    cluster: str
    pfs: Tuple[KeptPf, ...]


NOTHING = KeptVfs("", ())


def read(directory: str) -> KeptVfs:
    """Return the node's record.

    Raises:
        NodeError: the file exists and cannot be read.
    """
    path = os.path.join(directory, FILE_NAME)
    try:
        with open(path, encoding="utf-8") as stream:
            found: Any = json.load(stream)
        # Before 0.6.0 the keys were functions and parent.
        pfs = [{"pf": one.get("parent"), **one} for one in found["pfs" if "pfs" in found else "functions"]]
        kept = [
            KeptPf(one["pci"], bool(one["made"]), DesiredPf(**{key: one[key] for key in DesiredPf._fields}))
            for one in pfs
        ]
        return KeptVfs(str(found["cluster"]), tuple(kept))
    except FileNotFoundError:
        return NOTHING
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NodeError(
            "{0} no longer records which VFs were made here ({1})".format(path, error or "cut off")
        ) from None


def files(directory: str, kept: KeptVfs, program: bytes) -> Files:
    """Return the files that restore the VFs when the node boots.

    Args:
        directory: of the record.
        kept: the record.
        program: the boot program, packed from rdm_sriov/boot.py.
    """
    pfs = [
        {
            "pci": one.pci,
            "made": one.made,
            **one.wanted._asdict(),
            "addresses": list(one.wanted.addresses),
            "parent": one.wanted.pf,
        }
        for one in kept.pfs
    ]
    # functions and parent until 0.8.0: a release before 0.6.0 cannot read a record without them, and would
    # remove or replace it even if it is another cluster's.
    text = json.dumps({"cluster": kept.cluster, "pfs": pfs, "functions": pfs}, indent=1) + "\n"
    unit = _UNIT.format(python=sys.executable, program=PROGRAM, wanted_by=_WANTED_BY)
    return {
        # First the program, since one of another version may not be able to read the record.
        PROGRAM: (program, 0o755),
        os.path.join(directory, FILE_NAME): (text.encode(), 0o644),
        os.path.join(UNIT_DIRECTORY, UNIT): (unit.encode(), 0o644),
    }


def enabled_link() -> str:
    """Return the link by which systemd starts the program at boot."""
    return os.path.join(UNIT_DIRECTORY, _WANTED_BY + ".wants", UNIT)


def paths() -> List[str]:
    """Return the paths that must exist, where systemd runs, to restore VFs."""
    return [PROGRAM, os.path.join(DIRECTORY, FILE_NAME), enabled_link()]


@contextlib.contextmanager
def alone(directory: str) -> Iterator[None]:
    """Hold a lock, so that one process at a time changes VFs."""
    os.makedirs(directory, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
