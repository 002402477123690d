"""This machine as several nodes, which Ansible reaches through a real sshd for each connection."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rdm_provision.environment import CALLBACKS
from tests.integration.plays import ROOT

# Debian's bash reads .bashrc for each command of ssh, unless SHLVL says that it is a shell within a shell.
# That file may take seconds, and let one login wait for another.
_SSHD = """\
SetEnv SHLVL=1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
Subsystem sftp internal-sftp
"""

_DISK = """\
#!/bin/sh
# A node with a disk of its own.
exec nsenter --mount=/proc/{process}/ns/mnt ssh "$@"
"""
TRANSFER = {"images_network": "127.0.0.0/8", "images_port": 0, "rdm_become": False}
"""The variables of every transfer between nodes that are this machine."""


def configure_ssh(folder: Path) -> None:
    """Write keys and the configuration of sshd into a folder."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "known_hosts").write_text("node " + (folder / "host.pub").read_text())
    (folder / "sshd").write_text(_SSHD.format(folder=folder))
    Path("/run/sshd").mkdir(exist_ok=True)


def ssh_environment(folder: Path) -> dict[str, str]:
    """Return the environment of an ansible-playbook whose hosts, whatever their names, are this machine."""
    sshd = f"/usr/sbin/sshd -i -f {folder}/sshd"
    return {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".collections"),
        "ANSIBLE_CONFIG": str(Path(__file__).with_name("no_settings.cfg")),
        "ANSIBLE_CALLBACKS_ENABLED": CALLBACKS,
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_REMOTE_TEMP": str(folder / "remote"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_SSH_ARGS": f"-F none -i {folder}/user -o ControlMaster=no -o HostKeyAlias=node "
        f"-o UserKnownHostsFile={folder}/known_hosts -o 'ProxyCommand={sshd}'",
    }


def start_playbook(
    folder: Path, playbook: Path, variables: dict[str, Any], *flags: str, **environment: str
) -> subprocess.Popen[str]:
    """Start a playbook on the hosts of `inventory` in a folder, with these variables over TRANSFER."""
    words = [f"--inventory={folder}/inventory", f"--extra-vars={json.dumps({**TRANSFER, **variables})}"]
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("ansible-playbook")), *words, *flags, str(playbook)],
        env={**ssh_environment(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def own_disk(ssh: Path, mount: str) -> Iterator[int]:
    """Mount something for one node alone; yield the process that keeps it.

    Args:
        ssh: Where the ssh that reaches the node is written.
        mount: The arguments of mount.
    """
    script = f"mount {mount} && echo mounted && exec sleep infinity"
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    ) as it:
        try:
            assert it.stdout is not None
            assert it.stdout.readline() == "mounted\n"
            ssh.write_text(_DISK.format(process=it.pid))
            ssh.chmod(0o755)
            yield it.pid
        finally:
            it.kill()
