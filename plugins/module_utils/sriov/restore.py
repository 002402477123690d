# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node keeps of its virtual functions, and the program that makes them anew when it starts.

The kernel forgets all VFs with a restart. The program is this package itself, packed by the module that set
them up, so that both do the same. It belongs to the node, and not to a cluster's directory: two clusters
cannot share a card.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import sys
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.base.zip_program import source_of, zip_program
from ansible_collections.rdm.provision.plugins.module_utils.sriov.decision import Wanted
from ansible_collections.rdm.provision.plugins.module_utils.sriov.functions import VfProblem, physical
from ansible_collections.rdm.provision.plugins.module_utils.sriov.kernel import Kernel, bring

DIRECTORY = "/etc/rdm-sriov"
PROGRAM = "/usr/local/lib/rdm-sriov/rdm-sriov-vf"
UNIT = "rdm-sriov-vf.service"
UNIT_DIRECTORY = "/etc/systemd/system"

FILE_NAME = "vfs.json"

_WANTED_BY = "multi-user.target"
_PACKAGE = "ansible_collections.rdm.provision.plugins.module_utils."
_MODULES = (
    "base.zip_program",
    "hardware.partitions",
    "hardware.sysfs",
    "hardware.sysfs_files",
    "network.interfaces",
    "sriov.decision",
    "sriov.functions",
    "sriov.identity",
    "sriov.kernel",
    "sriov.restore",
)
_MAIN = "import sys\nfrom {0}sriov.restore import main\nsys.exit(main())\n".format(_PACKAGE)
_WAIT_S = 300.0  # for the cards' drivers, which systemd loads beside the services
_POLL_S = 0.5

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


def files(directory: str, kept: Kept) -> Files:
    """Return the files that bring back what is kept when the node starts.

    Raises:
        VfProblem: the program among them cannot be made.
    """
    functions = [
        {"pci": one.pci, "made": one.made, **one.wanted._asdict(), "addresses": list(one.wanted.addresses)}
        for one in kept.functions
    ]
    text = json.dumps({"cluster": kept.cluster, "functions": functions}, indent=1) + "\n"
    unit = _UNIT.format(python=sys.executable, program=PROGRAM, wanted_by=_WANTED_BY)
    return {
        os.path.join(directory, FILE_NAME): (text.encode(), 0o644),
        PROGRAM: (program(), 0o755),
        os.path.join(UNIT_DIRECTORY, UNIT): (unit.encode(), 0o644),
    }


def program() -> bytes:
    """Return this package as a program. It runs wherever the package can be imported from.

    Raises:
        VfProblem: a part is missing, without which the node would start without its VFs.
    """
    sources = {}
    for name in _MODULES:
        try:
            source = source_of(_PACKAGE + name)
        except ImportError as error:
            raise VfProblem("the program that restores VFs cannot be made: {0}".format(error)) from None
        sources[(_PACKAGE + name).replace(".", "/") + ".py"] = source.encode()
    return zip_program(sources, _MAIN.encode())


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


def main(arguments: Optional[Sequence[str]] = None, kernel: Optional[Kernel] = None) -> int:
    """Bring back the VFs that this node keeps.

    Args:
        arguments: of the command line; those of this process when there are none.
        kernel: of the node.

    Returns:
        The exit status: 0 when all are as they shall be.
    """
    parser = argparse.ArgumentParser(
        prog="rdm-sriov-vf", description="Makes this node's virtual functions as they were set up."
    )
    parser.add_argument("--directory", default=DIRECTORY, help="where they are written down (%(default)s)")
    parser.add_argument(
        "--wait", type=float, default=_WAIT_S, help="seconds for a card's driver to come (%(default)s)"
    )
    options = parser.parse_args(arguments)
    kernel = kernel or Kernel()
    until = time.monotonic() + options.wait
    wrong: List[str] = []
    try:
        with alone(options.directory):
            for one in read(options.directory).functions:
                try:
                    _await(kernel, one, until)
                    bring(kernel, one.wanted._replace(parent=one.pci))
                except VfProblem as problem:
                    wrong.append(str(problem))
    except (VfProblem, OSError) as problem:
        wrong.append(str(problem))
    for sentence in wrong:
        print("rdm-sriov-vf: {0}".format(sentence), file=sys.stderr)
    return 1 if wrong else 0


def _await(kernel: Kernel, function: Function, until: float) -> None:
    """Wait until a PF has its network interface, which its driver makes.

    Raises:
        VfProblem: it has none in time.
    """
    while True:
        try:
            # Nothing but sysfs: the processor has other things to do while a node starts.
            found = physical(function.pci, kernel.root, links={}, addresses={})
            if found.name != function.pci:
                return
            missing = "the card {0} ({1}) has no network interface".format(
                function.pci, function.wanted.parent
            )
        except VfProblem as problem:
            missing = str(problem)
        if time.monotonic() >= until:
            raise VfProblem(missing + ": see that its driver is loaded, then restart rdm-sriov-vf.service")
        time.sleep(_POLL_S)
