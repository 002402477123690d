# SPDX-License-Identifier: GPL-3.0-or-later
"""The network plugin's options in `docker network create -o NAME=VALUE`.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import re
from typing import Any, Dict

from ansible_collections.rdm.provision.rdm_sriov.state import Network
from ansible_collections.rdm.provision.rdm_sriov.vfs import VfProblem

MODES = ("sriov", "passthrough")
OPTIONS = ("mode", "mtu", "netdevice", "pkey", "prefix", "privileged", "vlan")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$")
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,11}$")
_VLANS = range(4096)
_MTUS = range(68, 65536)
_PKEY = re.compile(r"0x[0-9a-f]{1,4}$")


def wanted_network(options: Any) -> Network:
    """Return the network that the options of `docker network create` describe.

    Raises:
        VfProblem: an option is unknown or has a bad value.
    """
    if not isinstance(options, dict):
        raise VfProblem("the options of a network are not {0!r}".format(options))
    given = {str(name): str(value) for name, value in options.items()}
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        raise VfProblem(
            "there is no option {0}: there are {1}".format(", ".join(unknown), ", ".join(OPTIONS))
        )
    mode = given.get("mode", "sriov")
    if mode not in MODES:
        raise VfProblem("mode {0!r} is neither sriov nor passthrough".format(mode))
    pfs = tuple(name.strip() for name in given.get("netdevice", "").split(",") if name.strip())
    if not pfs:
        raise VfProblem("netdevice is missing: -o netdevice=INTERFACE, or several with commas")
    for name in pfs:
        if not _INTERFACE.match(name):
            raise VfProblem("netdevice {0!r} is no name of an interface".format(name))
    if len(set(pfs)) < len(pfs):
        raise VfProblem("netdevice {0} names an interface twice".format(",".join(pfs)))
    prefix = given.get("prefix") or "eth"
    if not _PREFIX.match(prefix):
        raise VfProblem(
            "prefix {0!r} is no beginning of an interface's name: a letter, then letters, digits, _ . "
            "and -, 12 at most".format(prefix)
        )
    privileged = given.get("privileged", "0").lower()
    if privileged not in ("0", "1", "true", "false"):
        raise VfProblem("privileged {0!r} is neither 0 nor 1".format(privileged))
    vlan, pkey = _number(given, "vlan", _VLANS), partition_key(given.get("pkey", ""))
    if pkey and (vlan or mode != "sriov"):
        raise VfProblem(
            "pkey {0:#x} goes with virtual functions of InfiniBand: not with {1}".format(
                pkey, "vlan {0}".format(vlan) if vlan else "mode " + mode
            )
        )
    return Network(
        pfs=pfs,
        mode=mode,
        vlan=vlan,
        privileged=privileged in ("1", "true"),
        prefix=prefix,
        mtu=_number(given, "mtu", _MTUS),
        pkey=pkey,
    )


def partition_key(text: str) -> int:
    """Return the key of an InfiniBand partition; 0 for none.

    Args:
        text: hexadecimal, as in a subnet manager's configuration, such as 0x8001; "" for none.

    Raises:
        VfProblem: it is not a full member's key. Limited members cannot reach each other, and IPoIB
            always joins as a full member.
    """
    if not text:
        return 0
    if not _PKEY.match(text.lower()) or not 0x8001 <= int(text, 16) <= 0xFFFF:
        raise VfProblem(
            "pkey {0!r} is no key of a partition's full members: from 0x8001 to 0xffff, as the subnet "
            "manager's partition with the highest bit set".format(text)
        )
    return int(text, 16)


def _number(given: Dict[str, str], name: str, allowed: range) -> int:
    text = given.get(name, "") or "0"
    if text == "0":
        return 0
    if not (text.isascii() and text.isdigit() and int(text) in allowed):
        raise VfProblem("{0} {1!r} is no number from {2} to {3}".format(name, text, allowed[0], allowed[-1]))
    return int(text)
