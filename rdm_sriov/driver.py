# SPDX-License-Identifier: GPL-3.0-or-later
"""A Docker network driver that gives containers virtual functions.

A VF is free if the kernel shows its interface in the node's network namespace and no endpoint has it. A
VF whose interface is in another namespace is in use, whoever moved it. A killed engine deletes no
endpoints, and the plugin misses deletions while it is down. So an endpoint that is older than the engine's or
the plugin's start counts only while its VF is away.

The kernel returns a VF some time after its namespace has ended: on a busy node, an engine that was killed
restarts the container earlier. So a container that had a VF, or was made with one's devices, waits for it.

Two calls are not Docker's. RdmSriov.Reserve reserves, before a container is created, a VF for its
address, so that the container can be given the devices of this VF. RdmSriov.Info returns the digest of
the running program and the networks that it knows.

The protocol: moby's libnetwork/docs/remote.md.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import ipaddress
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import (
    CREATE_NETWORK,
    FORMER_VF,
    GENERIC,
    INFO,
    RESERVE,
    VF,
)
from ansible_collections.rdm.provision.rdm_sriov.options import wanted_network
from ansible_collections.rdm.provision.rdm_sriov.rdma_namespace import (
    RdmaNamespaces,
)
from ansible_collections.rdm.provision.rdm_sriov.state import (
    Endpoint,
    Network,
    Owner,
    Reservation,
    State,
)
from ansible_collections.rdm.provision.rdm_sriov.vfs import (
    NodeVfs,
    Vf,
    VfProblem,
)

Answer = Dict[str, Any]
Recover = Callable[[], Dict[str, Dict[str, str]]]

RESERVED_S = 600.0
"""Seconds that a reservation is valid; containers are created within seconds."""
RETURN_S = 10.0
"""How long a container waits for the VF that it had, in seconds."""
_POLL_S = 0.1
ACTIVATE = "Plugin.Activate"
IMPLEMENTS = {"Implements": ["NetworkDriver"]}
CREATE_ENDPOINT = "NetworkDriver.CreateEndpoint"
# These calls succeed even if the state cannot be written: after a restart the kernel shows the same.
_RELEASES = ("NetworkDriver.DeleteEndpoint", "NetworkDriver.DeleteNetwork")


class Driver:
    """The networks of this node, and the VFs of its containers.

    Args:
        vfs: of the node.
        state: the state that survives a restart.
        recover: returns the options of the engine's networks of this driver, by ID; called for an unknown
            network.
        clock: seconds since the epoch.
        program: digest of the running program.
        warn: writes a line to the log.
        rdma: the RDMA devices of these VFs; None: those in sysfs.
        sleep: waits a number of seconds.
    """

    def __init__(
        self,
        vfs: NodeVfs,
        state: State,
        recover: Recover,
        clock: Callable[[], float] = time.time,
        program: str = "",
        warn: Callable[[str], None] = lambda _: None,
        rdma: Optional[RdmaNamespaces] = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._vfs = vfs
        self._state = state
        self._recover = recover
        self._clock = clock
        self._program = program
        self._warn = warn
        self._rdma = rdma or RdmaNamespaces(warn=warn)
        self._sleep = sleep
        self._lock = threading.Lock()
        self._calls: Dict[str, Callable[[Answer], Answer]] = {
            ACTIVATE: self._activate,
            "NetworkDriver.GetCapabilities": lambda _: {"Scope": "local", "ConnectivityScope": "local"},
            CREATE_NETWORK: self._create_network,
            "NetworkDriver.DeleteNetwork": self._delete_network,
            CREATE_ENDPOINT: self._create_endpoint,
            "NetworkDriver.DeleteEndpoint": self._delete_endpoint,
            "NetworkDriver.EndpointOperInfo": self._info,
            "NetworkDriver.Join": self._join,
            RESERVE: self._reserve,
            INFO: self._describe,
        }
        # The link returns when the sandbox releases it, after Leave.
        for name in ("Leave", "DiscoverNew", "DiscoverDelete"):
            self._calls["NetworkDriver." + name] = lambda _: {}
        for name in ("ProgramExternalConnectivity", "RevokeExternalConnectivity"):
            self._calls["NetworkDriver." + name] = lambda _: {}

    def knows(self, call: str) -> bool:
        """Return whether there is such a call."""
        return call in self._calls

    def answer(self, call: str, request: Answer) -> Answer:
        """Answer one call of the engine.

        Args:
            call: such as NetworkDriver.Join.
            request: its arguments.

        Raises:
            VfProblem: it failed; the state is unchanged.
        """
        if call == CREATE_ENDPOINT:
            self._wait_for_return(request)
        with self._lock, self._state.change(written=call not in _RELEASES):
            return self._calls[call](request)

    def _wait_for_return(self, request: Answer) -> None:
        """Wait until the kernel has returned the VF that a container had; other calls go on meanwhile."""
        for _ in range(round(RETURN_S / _POLL_S)):
            with self._lock:
                if not self._is_returning(request):
                    return
            self._sleep(_POLL_S)

    def _describe(self, _request: Answer) -> Answer:
        return {
            "Program": self._program,
            "Networks": sorted(self._state.networks),
            "Endpoints": len(self._state.endpoints),
        }

    # ---- networks

    def _activate(self, _request: Answer) -> Answer:
        self._state.confirmed.clear()
        return dict(IMPLEMENTS)

    def _create_network(self, request: Answer) -> Answer:
        name = _text(request, "NetworkID")
        network = wanted_network((_dict(request, "Options")).get(GENERIC) or {})
        if not [
            pool for pool in request.get("IPv4Data") or [] if isinstance(pool, dict) and pool.get("Pool")
        ]:
            raise VfProblem("a network of this driver needs an IPv4 --subnet")
        network = self._found(network)
        if network.vlan and not self._vfs.is_ethernet(network.pfs[0]):
            raise VfProblem(
                "vlan {0} on {1}: InfiniBand has partitions, which the subnet manager gives, and no "
                "VLANs".format(network.vlan, network.pfs[0])
            )
        for pf in network.pfs if network.pkey else ():
            if self._vfs.is_ethernet(pf):
                raise VfProblem(
                    "pkey {0:#x} on {1}: Ethernet has no partitions; it has VLANs".format(network.pkey, pf)
                )
        for pf in network.pfs if network.mode == "sriov" else ():
            self._vfs.up(pf)
        self._state.networks[name] = network
        return {}

    def _delete_network(self, request: Answer) -> Answer:
        name = _text(request, "NetworkID")
        self._state.networks.pop(name, None)
        for kept in (self._state.last, self._state.reserved):
            for owner in [owner for owner in kept if owner[0] == name]:
                del kept[owner]
        return {}

    def _network(self, name: str) -> Network:
        if name not in self._state.networks:
            found = {
                known: self._found(wanted_network(options))
                for known, options in self._recover().items()
                if known not in self._state.networks
            }
            if name not in found:
                raise VfProblem(
                    "network {0} is unknown here and the engine does not say what it was: rdm-provision up "
                    "restores it".format(name[:12])
                )
            self._state.networks.update(found)
        return self._state.networks[name]

    def _found(self, network: Network) -> Network:
        """Return a network, after a check that its VFs exist."""
        if network.mode == "passthrough":
            # Keys, since interfaces get other names in containers.
            return network._replace(keys=tuple(self._vfs.whole(name).key for name in network.pfs))
        self._pool(network)
        return network

    # ---- endpoints

    def _create_endpoint(self, request: Answer) -> Answer:
        network_id, name = _text(request, "NetworkID"), _text(request, "EndpointID")
        network = self._network(network_id)
        if name in self._state.endpoints:
            raise VfProblem("endpoint {0} is there already".format(name[:12]))
        wanted = _dict(request, "Interface")
        address, hardware = (
            str(wanted.get("Address") or ""),
            str(wanted.get("MacAddress") or "").lower(),
        )
        bound = _bound(request)
        vf = self._choose((network_id, address), network, hardware, bound)
        interface = self._vfs.interface(vf)
        ethernet = self._vfs.is_ethernet(interface)
        self._rdma.check(vf.key, ethernet, needed=bool(bound))
        if vf.number >= 0 and ethernet:
            self._vfs.isolate(vf, network.vlan, network.privileged)
        elif vf.number >= 0:
            interface = self._vfs.partition(vf, network.pkey, name) or interface
        if network.mtu:
            self._vfs.set_mtu(interface, network.mtu)
        if address:
            self._state.last[network_id, address] = vf.key
        own = self._vfs.address(interface)
        self._state.endpoints[name] = Endpoint(network_id, vf.key, address, own)
        self._state.confirmed.add(name)
        self._state.reserved = {
            owner: one
            for owner, one in self._state.reserved.items()
            if owner != (network_id, address) and one.vf != vf.key
        }
        # The card assigns an InfiniBand address.
        return {"Interface": {"MacAddress": own} if own and ethernet and not hardware else {}}

    def _delete_endpoint(self, request: Answer) -> Answer:
        name = _text(request, "EndpointID")
        endpoint = self._state.endpoints.pop(name, None)
        network = self._state.networks.get(endpoint.network) if endpoint else None
        if endpoint and network and network.pkey:
            # The engine does not retry: the endpoint is gone, and the next one on this VF cleans up.
            try:
                self._vfs.reunite(Vf(endpoint.vf, network.pfs[0], 0), name)
            except VfProblem as problem:
                self._warn(
                    "the partition of endpoint {0} is still on {1}: {2}".format(
                        name[:12], endpoint.vf, problem
                    )
                )
        return {}

    def _info(self, request: Answer) -> Answer:
        endpoint = self._state.endpoints.get(_text(request, "EndpointID"))
        return {"Value": {VF: endpoint.vf, FORMER_VF: endpoint.vf} if endpoint else {}}

    def _join(self, request: Answer) -> Answer:
        name = _text(request, "EndpointID")
        endpoint = self._state.endpoints.get(name)
        if endpoint is None:
            raise VfProblem("endpoint {0} is unknown here".format(name[:12]))
        network = self._network(endpoint.network)
        vf = next((one for one in self._pool(network) if one.key == endpoint.vf), None)
        interface = self._vfs.interface(vf) if vf else ""
        if vf and network.pkey:
            interface = self._vfs.child(vf, name)
        if not interface:
            raise VfProblem(
                "the interface of {0}, which this container was to get, is gone".format(endpoint.vf)
            )
        ethernet = self._vfs.is_ethernet(interface)
        self._rdma.lend(endpoint.vf, ethernet, str(request.get("SandboxKey") or ""))
        self._state.confirmed.add(name)
        # Without this, the container gets a default route through a gateway that does not exist.
        return {
            "InterfaceName": {"SrcName": interface, "DstPrefix": network.prefix},
            "DisableGatewayService": True,
        }

    # ---- VFs

    def _pool(self, network: Network) -> List[Vf]:
        if network.mode == "passthrough":
            return [Vf(key, pf, -1) for key, pf in zip(network.keys, network.pfs)]
        return [vf for pf in network.pfs for vf in self._vfs.virtual(pf)]

    def _free(self, pool: List[Vf]) -> List[Vf]:
        """Return the VFs that are here and have no endpoint; drop stale endpoints and reservations."""
        state = self._state
        # These are in use, wherever their interfaces are; skip the lookup, which costs time.
        taken = {one.vf for name, one in state.endpoints.items() if name in state.confirmed}
        free = {one.key: one for one in pool if one.key not in taken and self._vfs.interface(one)}
        for name, endpoint in list(state.endpoints.items()):
            if endpoint.vf in free:
                del state.endpoints[name]
        now = self._clock()
        for owner, reservation in list(state.reserved.items()):
            if not 0 <= now - reservation.since < RESERVED_S:
                del state.reserved[owner]
        return list(free.values())

    def _is_returning(self, request: Answer) -> bool:
        """Return whether the VF that a container needs or had last is away, and no other endpoint has it."""
        state, network_id = self._state, _text(request, "NetworkID")
        network = state.networks.get(network_id)
        owner = network_id, str(_dict(request, "Interface").get("Address") or "")
        key = _bound(request) or state.last.get(owner)
        if network is None or any(
            one.vf == key and (name in state.confirmed or one.owner != owner)
            for name, one in state.endpoints.items()
        ):
            return False
        vf = next((one for one in self._pool(network) if one.key == key), None)
        return vf is not None and not self._vfs.is_idle(vf) and not self._vfs.interface(vf)

    def _choose(self, owner: Owner, network: Network, hardware: str = "", bound: str = "") -> Vf:
        """Return the VF for an owner.

        Args:
            owner: network and address.
            network: this network.
            hardware: the requested hardware address.
            bound: the key of the VF whose devices the container was created with.
        """
        pool = self._pool(network)
        free = self._free(pool)
        mine = self._state.reserved.get(owner)
        waiting = {one.vf for one in self._state.reserved.values()}
        if bound:
            promised = waiting - {mine.vf if mine else ""}
            free = [one for one in free if one.key == bound and bound not in promised]
            if not free:
                raise VfProblem(
                    "{0}, whose RDMA devices this container was made with, is another container's now, or "
                    "gone: rdm-provision up recreates the container".format(bound)
                )
        if hardware:
            found = [one for one in free if self._vfs.address(self._vfs.interface(one)) == hardware]
        elif bound:
            found = free
        elif mine:
            found = [one for one in free if one.key == mine.vf]
        else:
            found = [one for one in free if one.key not in waiting]
        if not found:
            pfs = ", ".join(network.pfs)
            what = "virtual function" if network.mode == "sriov" else "interface"
            if hardware:
                raise VfProblem("no free {0} of {1} has the address {2}".format(what, pfs, hardware))
            if mine:
                raise VfProblem(
                    "{0} of {1}, which was reserved for {2}, is not here any more: reserve another".format(
                        mine.vf, pfs, owner[1]
                    )
                )
            idle = [one.key for one in pool if self._vfs.is_idle(one)]
            with_driver = len(pool) - len(idle)
            taken = "the one" if with_driver == 1 else "all {0}".format(with_driver)
            if free:
                taken = "{0} of {1}, and {2} wait for containers that are to start".format(
                    with_driver - len(free), with_driver, len(free)
                )
            if idle:
                taken += ", and {0} {1} no driver".format(
                    ", ".join(idle), "has" if len(idle) == 1 else "have"
                )
            raise VfProblem("no {0} of {1} is free: containers have {2}".format(what, pfs, taken))
        before = self._state.last.get(owner)
        # Prefer the owner's last VF, then one that no other owner had last.
        known = {key for who, key in self._state.last.items() if who != owner}
        return min(found, key=lambda one: (one.key != before, one.key in known))

    def _reserve(self, request: Answer) -> Answer:
        network_id, address = _text(request, "NetworkID"), _text(request, "Address")
        try:
            owner = (network_id, str(ipaddress.ip_interface(address)))
        except ValueError:
            raise VfProblem(
                "Address {0!r} is no address with a prefix length, such as 192.169.16.100/24".format(address)
            ) from None
        network = self._network(network_id)
        pool = self._pool(network)
        free = {one.key for one in self._free(pool)}
        mine = self._state.reserved.get(owner)
        has = next((one for one in self._state.endpoints.values() if one.owner == owner), None)
        vf = next((one for one in pool if has and one.key == has.vf), None)
        if not vf:
            if mine and mine.vf not in free:
                del self._state.reserved[owner]
            vf = self._choose(owner, network)
            self._state.reserved[owner] = Reservation(vf.key, self._clock())
        interface = self._vfs.interface(vf)
        reserved = {
            "pci": vf.key if vf.key != vf.pf else "",
            "pf": vf.pf,
            "index": vf.number,
            "interface": interface,
            "mac": self._vfs.address(interface) if interface or not has else has.hardware,
        }
        return {
            "Vf": reserved,
            # For a controller before 0.6.0.
            "Function": {**reserved, "parent": vf.pf},
        }


def _bound(request: Answer) -> str:
    """Return the key of the VF whose devices a container was created with; "" for none."""
    options = _dict(request, "Options")
    return str(options.get(VF) or options.get(FORMER_VF) or "")


def _text(request: Answer, name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise VfProblem("the request has no {0}".format(name))
    return value


def _dict(request: Answer, name: str) -> Answer:
    value = request.get(name) or {}
    if not isinstance(value, dict):
        raise VfProblem("{0} of the request is no object".format(name))
    return value
