# SPDX-License-Identifier: GPL-3.0-or-later
"""The systemd unit that runs the network plugin.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import re
from typing import Sequence

NAME = "rdm-sriov.service"
PATH = "/etc/systemd/system/" + NAME
WANTED_BY = ("docker.service", "multi-user.target")
_SOCKET = re.compile(r"^ExecStart=.* --socket \"?([^\s\"]+)", re.MULTILINE)
_CLUSTER = re.compile(r"^# Of the cluster (.+)$", re.MULTILINE)

# The plugin changes links of the node and of containers (CAP_NET_ADMIN), uses netlink and unix sockets, and
# creates its socket next to the engine's. Older versions of systemd ignore settings that they do not know.
_TEXT = """\
# Written by rdm-provision.
# Of the cluster {cluster}
[Unit]
Description=Docker network plugin that gives containers virtual functions
Before=docker.service
After=rdm-sriov-vf.service
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={command}
Restart=always
RestartSec=1
OOMScoreAdjust=-500
UMask=0077
StateDirectory={state}
StateDirectoryMode=0700
CapabilityBoundingSet=CAP_NET_ADMIN
IPAddressDeny=any
KeyringMode=private
LockPersonality=yes
MemoryDenyWriteExecute=yes
NoNewPrivileges=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=read-only
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
ReadWritePaths=/run
RestrictAddressFamilies=AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service

[Install]
WantedBy={wanted}
"""


def unit(cluster: str, command: Sequence[str], state: str) -> str:
    """Return the text of the unit.

    Args:
        cluster: whose plugin it is.
        command: the plugin's command line, with an absolute path first.
        state: the name of its state directory in /var/lib.
    """
    return _TEXT.format(
        cluster=cluster, command=" ".join(map(_quoted, command)), state=state, wanted=" ".join(WANTED_BY)
    )


def cluster_of(text: str) -> str:
    """Return the cluster that owns a unit; "" if it names none."""
    found = _CLUSTER.search(text)
    return found.group(1) if found else ""


def socket_of(text: str) -> str:
    """Return the socket of a unit's plugin; "" if it names none."""
    found = _SOCKET.search(text)
    return found.group(1) if found else ""


def _quoted(word: str) -> str:
    """Quote a word of a command line for systemd: systemd.service(5), Command lines."""
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return '"{0}"'.format(word) if re.search(r"[^A-Za-z0-9_./:=@,+$%-]", word) else word
