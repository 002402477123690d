# SPDX-License-Identifier: GPL-3.0-or-later
"""A real sshd at each address of the nodes of :mod:`tests.distributed.nodes`.

Launchers that use ssh run one command everywhere, by a path that each node has (``rdm_job.links``). Here all
nodes are on one machine and have the same path, so they must share the directory of the jobs.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from rdm_job import network
from tests.distributed.nodes import Nodes
from tests.waiting import wait_until

__all__ = ["run_sshd"]

# Debian's bash reads .bashrc for each command of ssh, unless SHLVL says that it is a shell within a shell.
# That file may take seconds, and let one login wait for another.
NO_BASHRC = "SHLVL=1"
DAEMON = """\
{listen}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
MaxStartups 100
{environments}
"""
CLIENT = """\
Port {port}
IdentityFile {folder}/user
UserKnownHostsFile {folder}/known_hosts
BatchMode yes
LogLevel ERROR
"""


@contextlib.contextmanager
def run_sshd(nodes: Nodes, folder: Path) -> Iterator[None]:
    """Run an sshd that listens at each node's address, and give agents an ``ssh`` that knows its port.

    Args:
        nodes: The nodes; from now on they share the directory of the jobs.
        folder: For keys and configurations.
    """
    for node in nodes.folder.glob("n[2-9]"):
        node.rmdir()
        node.symlink_to("n1")
    nodes.addresses_in_environment = True
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    found = network.take_free_ports("127.0.0.1", 1, zlib.crc32(f"sshd {folder}".encode()))
    assert found, "no port is free for sshd"
    (port,) = found
    addresses = [str(node["address"]) for node in nodes.nodes]
    host = (folder / "host.pub").read_text()
    (folder / "known_hosts").write_text("".join(f"[{one}]:{port} {host}" for one in addresses))
    (folder / "sshd").write_text(
        DAEMON.format(
            folder=folder,
            listen="\n".join(f"ListenAddress {one}:{port}" for one in addresses),
            environments="\n".join(
                f"Match LocalAddress {one}\n  SetEnv MY_IP={one} {NO_BASHRC}" for one in addresses
            ),
        )
    )
    (folder / "ssh_config").write_text(CLIENT.format(folder=folder, port=port))
    (folder / "bin").mkdir()
    (folder / "bin/ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/ssh_config "$@"\n')
    (folder / "bin/ssh").chmod(0o755)
    for environment in nodes.environments.values():
        environment["PATH"] = f"{folder}/bin{os.pathsep}{os.environ['PATH']}"
    Path("/run/sshd").mkdir(exist_ok=True)
    daemon = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", folder / "sshd"], stderr=sys.stderr)
    try:
        for one in addresses:
            wait_until(f"sshd listens at {one}", functools.partial(_answers, folder, one))
        yield
    finally:
        daemon.terminate()
        daemon.wait()


def _answers(folder: Path, address: str) -> bool:
    return subprocess.run([folder / "bin/ssh", address, "true"], check=False).returncode == 0
