"""This machine as several nodes, which Ansible reaches through a real sshd for each connection."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
