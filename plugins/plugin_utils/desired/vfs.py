# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired virtual functions (VFs) of one node, and which network plugin assigns them."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.rdm.provision.plugins.module_utils.sriov.desired_vfs import DesiredVfs
from ansible_collections.rdm.provision.plugins.module_utils.sriov.identity import (
    MAC_BYTES,
    MOST_PFS,
    MOST_VFS,
    bytes_of,
    normal,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables
from ansible_collections.rdm.provision.rdm_sriov.state import Network

OWN, UPSTREAM = "rdm-sriov", "upstream"
UPSTREAM_IMAGE = "rdma/sriov-plugin:latest"
DRIVERS_ON_AN_INTERFACE = {"sriov", "macvlan", "ipvlan"}
"""The network drivers whose networks use an interface of the node."""


def plugin_of(variables: NodeVariables) -> str:
    """Return the desired SR-IOV network plugin of a node; empty for none."""
    enabled = variables.true("sriov_enabled", otherwise=variables.text("network_driver") == "sriov")
    return variables.text("sriov_plugin") if enabled and variables.text("sriov_state") != "absent" else ""


def reserves_vf(variables: NodeVariables) -> bool:
    """Return whether the network plugin assigns VFs before a container is created."""
    return variables.text("network_driver") == "sriov" and plugin_of(variables) == OWN


def has_vfs(variables: NodeVariables) -> bool:
    """Return whether VFs are created on a node."""
    return bool(_number(variables) and plugin_of(variables))


def desired_vfs(variables: NodeVariables, planned_mac: str = "") -> DesiredVfs:
    """Return the desired VFs of a node.

    Values of a wrong type are ignored, since another check reports them.

    Args:
        variables: the node's variables.
        planned_mac: its first MAC in the address plan; empty if there is none.

    Raises:
        ValueError: the node has VFs, and the variables contradict each other.
    """
    first_mac = variables.value("sriov_vf_first_mac")
    vfs = DesiredVfs(
        pfs=_pfs(variables),
        number=_number(variables),
        first_mac=planned_mac if first_mac is None else str(first_mac),
        addresses=variables.value("sriov_vf_addresses") or {},
        policy=variables.text("sriov_vf_policy") or "Follow",
        vlan=_optional(variables, "sriov_vf_vlan", int),
        trust=_optional(variables, "sriov_vf_trust", boolean),
        spoof_check=_optional(variables, "sriov_vf_spoof_check", boolean),
    )
    return _checked(vfs) if has_vfs(variables) else vfs


def refuse_undone(vfs: DesiredVfs, network: Network) -> None:
    """Raise ValueError if rdm-sriov would undo a setting of a VF at each start of its container."""
    if network.mode != "sriov":
        return
    privileged = network.privileged
    settings = (
        ("sriov_vf_vlan", vfs.vlan, network.vlan, "network_vlan", network.vlan),
        ("sriov_vf_trust", vfs.trust, privileged, "network_privileged", privileged),
        ("sriov_vf_spoof_check", vfs.spoof_check, not privileged, "network_privileged", privileged),
    )
    for name, wanted, sets, of_network, has in settings:
        if wanted is not None and wanted != sets:
            raise ValueError(
                f"{name} {_text(wanted)} contradicts {of_network} {_text(has)}, from which rdm-sriov sets it "
                f"to {_text(sets)} at each start of a container; leave {name} out"
            )


def observed_settings(vfs: DesiredVfs) -> list[str]:
    """Return the settings of each VF that are observed to detect drift."""
    given = {"vlan": vfs.vlan, "trust": vfs.trust, "spoof_check": vfs.spoof_check}
    return ["address", "policy", *(name for name, value in given.items() if value is not None)]


def _pfs(variables: NodeVariables) -> list[str]:
    named = variables.value("sriov_vf_pfs")
    if isinstance(named, list):
        return [str(name) for name in named]
    rails = variables.value("container_rails")
    # A pool of several PFs is one comma-separated text.
    pool = [name.strip() for name in variables.text("network_parent").split(",")]
    names = [*pool, *(rails if isinstance(rails, (list, tuple)) else ())]
    return list(dict.fromkeys(str(name) for name in names if name))


def _number(variables: NodeVariables) -> int:
    try:
        return int(variables.text("sriov_vfs") or 0)
    except ValueError:
        return 0


def _checked(vfs: DesiredVfs) -> DesiredVfs:
    """Return VFs with normalised addresses; ValueError if they are impossible."""
    if not 0 < vfs.number <= MOST_VFS:
        raise ValueError(f"sriov_vfs {vfs.number} is not between 0 and {MOST_VFS}")
    pfs = vfs.pfs
    if not 0 < len(pfs) <= MOST_PFS or len(set(pfs)) < len(pfs) or not all(pfs):
        raise ValueError(
            f"sriov_vf_pfs {pfs} does not name 1 to {MOST_PFS} physical functions, each of them once"
        )
    return vfs._replace(first_mac=_first_mac(vfs.first_mac), addresses=_addresses(vfs))


def _first_mac(text: str) -> str:
    if not text:
        return ""
    try:
        mac = normal(text)
    except ValueError:
        mac = ""
    # The first bit of the first byte marks an address of a group (IEEE 802).
    if not mac or bytes_of(mac) != MAC_BYTES or int(mac[:2], 16) & 1:
        raise ValueError(f"sriov_vf_first_mac {text} is no MAC of one station, such as 06:5e:91:06:40:00")
    return mac


def _addresses(vfs: DesiredVfs) -> dict[str, list[str]]:
    if not isinstance(vfs.addresses, dict):
        return {}
    normalised: dict[str, list[str]] = {}
    for pf, listed in vfs.addresses.items():
        if pf not in vfs.pfs:
            raise ValueError(f"sriov_vf_addresses names {pf}, which is none of {', '.join(vfs.pfs)}")
        if not isinstance(listed, list) or len(listed) < vfs.number:
            raise ValueError(f"sriov_vf_addresses has no list of {vfs.number} addresses for {pf}")
        normalised[pf] = []
        for text in listed:
            try:
                normalised[pf].append(normal(str(text)))
            except ValueError as error:
                raise ValueError(f"sriov_vf_addresses {text} of {pf} {error}") from None
    return normalised


def _text(value: int) -> str:
    """Return a setting as it is written in an inventory."""
    return str(value).lower()


def _optional(variables: NodeVariables, name: str, kind: Any) -> Any:
    value = variables.value(name)
    try:
        return None if value is None else kind(value)
    except (TypeError, ValueError):
        return None  # another check reports it
