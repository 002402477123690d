# SPDX-License-Identifier: GPL-3.0-or-later
"""The program rdm-sriov-vf: creates a node's virtual functions again when the node boots.

It uses the same code as the module sriov_vf, which configured them.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import List, Optional, Sequence

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.sriov.kept_vfs import (
    DIRECTORY,
    KeptPf,
    alone,
    read,
)
from ansible_collections.rdm.provision.plugins.module_utils.sriov.kernel import Kernel, bring
from ansible_collections.rdm.provision.plugins.module_utils.sriov.observed_vfs import read_pf

_WAIT_S = 300.0  # for the cards' drivers, which systemd loads while services start
_POLL_S = 0.5


def main(arguments: Optional[Sequence[str]] = None, kernel: Optional[Kernel] = None) -> int:
    """Restore the VFs in this node's record.

    Args:
        arguments: of the command line; None: this process's.
        kernel: of the node.

    Returns:
        The exit status: 0 if all VFs are in their desired state.
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
            for one in read(options.directory).pfs:
                try:
                    _await(kernel, one, until)
                    bring(kernel, one.wanted._replace(pf=one.pci))
                except NodeError as problem:
                    wrong.append(str(problem))
    except (NodeError, OSError) as problem:
        wrong.append(str(problem))
    for sentence in wrong:
        print("rdm-sriov-vf: {0}".format(sentence), file=sys.stderr)
    return 1 if wrong else 0


def _await(kernel: Kernel, kept: KeptPf, until: float) -> None:
    """Wait until a PF's driver has created its network interface.

    Raises:
        NodeError: it has none after the timeout.
    """
    while True:
        try:
            # Only sysfs, which costs little: processors are busy while a node boots.
            found = read_pf(kept.pci, kernel.root, links={}, addresses={})
            if found.name != kept.pci:
                return
            missing = "the card {0} ({1}) has no network interface".format(kept.pci, kept.wanted.pf)
        except NodeError as problem:
            missing = str(problem)
        if time.monotonic() >= until:
            raise NodeError(missing + ": see that its driver is loaded, then restart rdm-sriov-vf.service")
        time.sleep(_POLL_S)
