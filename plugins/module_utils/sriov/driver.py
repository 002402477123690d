# SPDX-License-Identifier: GPL-3.0-or-later
"""What Docker asks a network driver, answered with virtual functions.

Which function is free is decided by what the kernel shows, and by what was promised since the engine began:
a function whose interface is in another network namespace is taken, whoever took it; one that is back is free
again once its endpoint is gone, or the engine that had asked for it. An engine that is killed sends no word,
so what it had promised counts no longer as soon as the next one says hello.

The protocol: moby's libnetwork/docs/remote.md.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import re
import threading
from typing import Any, Callable, Dict, List

from ansible_collections.rdm.provision.plugins.module_utils.sriov.functions import (
    Function,
    FunctionProblem,
    Functions,
)
from ansible_collections.rdm.provision.plugins.module_utils.sriov.state import Endpoint, Network, State

Answer = Dict[str, Any]
Recover = Callable[[], Dict[str, Dict[str, str]]]

GENERIC = "com.docker.network.generic"
MODES = ("sriov", "passthrough")
OPTIONS = ("mode", "mtu", "netdevice", "prefix", "privileged", "vlan")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$")
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,11}$")
_VLANS = range(4096)
_MTUS = range(68, 65536)


class Driver:
    """The networks of this node, and the functions in its containers.

    Args:
        functions: of the node.
        state: what is kept over a restart.
        recover: returns the options of the networks of this driver that the engine knows, by ID; used when
            one is unknown here.
    """

    def __init__(self, functions: Functions, state: State, recover: Recover) -> None:
        self._functions = functions
        self._state = state
        self._recover = recover
        self._lock = threading.Lock()
        self._calls: Dict[str, Callable[[Answer], Answer]] = {
            "Plugin.Activate": self._activate,
            "NetworkDriver.GetCapabilities": lambda _: {"Scope": "local", "ConnectivityScope": "local"},
            "NetworkDriver.CreateNetwork": self._create_network,
            "NetworkDriver.DeleteNetwork": self._delete_network,
            "NetworkDriver.CreateEndpoint": self._create_endpoint,
            "NetworkDriver.DeleteEndpoint": self._delete_endpoint,
            "NetworkDriver.EndpointOperInfo": self._info,
            "NetworkDriver.Join": self._join,
        }
        # The link goes back when the sandbox lets go of it, which is after Leave.
        for name in ("Leave", "DiscoverNew", "DiscoverDelete"):
            self._calls["NetworkDriver." + name] = lambda _: {}
        for name in ("ProgramExternalConnectivity", "RevokeExternalConnectivity"):
            self._calls["NetworkDriver." + name] = lambda _: {}

    def knows(self, call: str) -> bool:
        """Say whether there is such a call."""
        return call in self._calls

    def answer(self, call: str, request: Answer) -> Answer:
        """Answer one call of the engine.

        Args:
            call: such as NetworkDriver.Join.
            request: what the engine says with it.

        Raises:
            FunctionProblem: it cannot be done; the state is as it was.
        """
        with self._lock:
            return self._calls[call](request)

    # ---- networks

    def _activate(self, _request: Answer) -> Answer:
        for name, endpoint in self._state.endpoints.items():
            self._state.endpoints[name] = endpoint._replace(confirmed=False)
        self._state.save()
        return {"Implements": ["NetworkDriver"]}

    def _create_network(self, request: Answer) -> Answer:
        name = _text(request, "NetworkID")
        network = wanted_network((_dict(request, "Options")).get(GENERIC) or {})
        if not [
            pool for pool in request.get("IPv4Data") or [] if isinstance(pool, dict) and pool.get("Pool")
        ]:
            raise FunctionProblem("a network of this driver needs an IPv4 --subnet")
        network = self._found(network)
        if network.vlan and not self._functions.is_ethernet(network.parents[0]):
            raise FunctionProblem(
                "vlan {0} on {1}: InfiniBand has partitions, which the subnet manager gives, and no "
                "VLANs".format(network.vlan, network.parents[0])
            )
        for parent in network.parents if network.mode == "sriov" else ():
            self._functions.up(parent)
        self._put(self._state.networks, name, network)
        return {}

    def _delete_network(self, request: Answer) -> Answer:
        name = _text(request, "NetworkID")
        if self._state.networks.pop(name, None) is not None:
            for key in [key for key in self._state.last if key[0] == name]:
                del self._state.last[key]
            self._state.save()
        return {}

    def _network(self, name: str) -> Network:
        if name not in self._state.networks:
            found = {
                known: self._found(wanted_network(options))
                for known, options in self._recover().items()
                if known not in self._state.networks
            }
            if name not in found:
                raise FunctionProblem(
                    "network {0} is unknown here and the engine does not say what it was: remove it and "
                    "make it again".format(name[:12])
                )
            self._state.networks.update(found)
            self._state.save()
        return self._state.networks[name]

    def _found(self, network: Network) -> Network:
        """Return a network whose functions are there."""
        if network.mode == "passthrough":
            # They get other names in containers.
            return network._replace(keys=tuple(self._functions.whole(name).key for name in network.parents))
        self._pool(network)
        return network

    # ---- endpoints

    def _create_endpoint(self, request: Answer) -> Answer:
        network_id, name = _text(request, "NetworkID"), _text(request, "EndpointID")
        network = self._network(network_id)
        if name in self._state.endpoints:
            raise FunctionProblem("endpoint {0} is there already".format(name[:12]))
        asked = _dict(request, "Interface")
        address, hardware = str(asked.get("Address") or ""), str(asked.get("MacAddress") or "").lower()
        function = self._choose(network_id, network, address, hardware)
        interface = self._functions.interface(function)
        ethernet = self._functions.is_ethernet(interface)
        if function.number >= 0 and ethernet:
            self._functions.isolate(function, network.vlan, network.privileged)
        if network.mtu:
            self._functions.set_mtu(interface, network.mtu)
        if address:
            self._state.last[network_id, address] = function.key
        self._put(self._state.endpoints, name, Endpoint(network_id, function.key, address))
        # An InfiniBand address is the card's to give.
        own = self._functions.address(interface) if ethernet and not hardware else ""
        return {"Interface": {"MacAddress": own} if own else {}}

    def _delete_endpoint(self, request: Answer) -> Answer:
        if self._state.endpoints.pop(_text(request, "EndpointID"), None) is not None:
            self._state.save()
        return {}

    def _info(self, request: Answer) -> Answer:
        endpoint = self._state.endpoints.get(_text(request, "EndpointID"))
        return {"Value": {"rdm.provision.function": endpoint.function} if endpoint else {}}

    def _join(self, request: Answer) -> Answer:
        name = _text(request, "EndpointID")
        endpoint = self._state.endpoints.get(name)
        if endpoint is None:
            raise FunctionProblem("endpoint {0} is unknown here".format(name[:12]))
        network = self._network(endpoint.network)
        function = next((one for one in self._pool(network) if one.key == endpoint.function), None)
        interface = self._functions.interface(function) if function else ""
        if not interface:
            raise FunctionProblem(
                "the interface of {0}, which this container was to get, is gone".format(endpoint.function)
            )
        # Without this, the container gets a default route through a gateway that nobody is.
        return {
            "InterfaceName": {"SrcName": interface, "DstPrefix": network.prefix},
            "DisableGatewayService": True,
        }

    # ---- functions

    def _pool(self, network: Network) -> List[Function]:
        if network.mode == "passthrough":
            return [Function(key, parent, -1) for key, parent in zip(network.keys, network.parents)]
        return [function for parent in network.parents for function in self._functions.virtual(parent)]

    def _choose(self, network_id: str, network: Network, address: str, hardware: str) -> Function:
        pool = self._pool(network)
        promised = {one.function for one in self._state.endpoints.values() if one.confirmed}
        here = {one.key for one in pool if self._functions.interface(one)}
        # Nobody will end what an engine that was killed had begun.
        for name, endpoint in list(self._state.endpoints.items()):
            if not endpoint.confirmed and endpoint.function in here:
                del self._state.endpoints[name]
        free = [one for one in pool if one.key in here - promised]
        if hardware:
            free = [
                one for one in free if self._functions.address(self._functions.interface(one)) == hardware
            ]
        if not free:
            what = "virtual function" if network.mode == "sriov" else "interface"
            parents = ", ".join(network.parents)
            if hardware:
                raise FunctionProblem(
                    "no free {0} of {1} has the address {2}".format(what, parents, hardware)
                )
            raise FunctionProblem(
                "no {0} of {1} is free: containers have {2}".format(
                    what, parents, "the one" if len(pool) == 1 else "all {0}".format(len(pool))
                )
            )
        before = self._state.last.get((network_id, address))
        # Others may have had one that this container knows: it is the last to be given to somebody else.
        known = {key for who, key in self._state.last.items() if who != (network_id, address)}
        return min(free, key=lambda one: (one.key != before, one.key in known))

    def _put(self, where: Dict[str, Any], name: str, what: Any) -> None:
        """Keep something, or nothing of it when it cannot be written down."""
        where[name] = what
        try:
            self._state.save()
        except FunctionProblem:
            del where[name]
            raise


def wanted_network(options: Any) -> Network:
    """Return the network that `docker network create -o NAME=VALUE` asks for.

    Args:
        options: as the engine hands them on.

    Raises:
        FunctionProblem: one of them is unknown or has no such value.
    """
    if not isinstance(options, dict):
        raise FunctionProblem("the options of a network are not {0!r}".format(options))
    given = {str(name): str(value) for name, value in options.items()}
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        raise FunctionProblem(
            "there is no option {0}: there are {1}".format(", ".join(unknown), ", ".join(OPTIONS))
        )
    mode = given.get("mode", "sriov")
    if mode not in MODES:
        raise FunctionProblem("mode {0!r} is neither sriov nor passthrough".format(mode))
    parents = tuple(name.strip() for name in given.get("netdevice", "").split(",") if name.strip())
    if not parents:
        raise FunctionProblem("netdevice is missing: -o netdevice=INTERFACE, or several with commas")
    for name in parents:
        if not _INTERFACE.match(name):
            raise FunctionProblem("netdevice {0!r} is no name of an interface".format(name))
    if len(set(parents)) < len(parents):
        raise FunctionProblem("netdevice {0} names an interface twice".format(",".join(parents)))
    prefix = given.get("prefix") or "eth"
    if not _PREFIX.match(prefix):
        raise FunctionProblem(
            "prefix {0!r} is no beginning of an interface's name: a letter, then letters, digits, _ . "
            "and -, 12 at most".format(prefix)
        )
    privileged = given.get("privileged", "0").lower()
    if privileged not in ("0", "1", "true", "false"):
        raise FunctionProblem("privileged {0!r} is neither 0 nor 1".format(privileged))
    return Network(
        parents=parents,
        mode=mode,
        vlan=_number(given, "vlan", _VLANS),
        privileged=privileged in ("1", "true"),
        prefix=prefix,
        mtu=_number(given, "mtu", _MTUS),
    )


def _number(given: Dict[str, str], name: str, allowed: range) -> int:
    text = given.get(name, "") or "0"
    if text == "0":
        return 0
    if not (text.isascii() and text.isdigit() and int(text) in allowed):
        raise FunctionProblem(
            "{0} {1!r} is no number from {2} to {3}".format(name, text, allowed[0], allowed[-1])
        )
    return int(text)


def _text(request: Answer, name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise FunctionProblem("the request has no {0}".format(name))
    return value


def _dict(request: Answer, name: str) -> Answer:
    value = request.get(name) or {}
    if not isinstance(value, dict):
        raise FunctionProblem("{0} of the request is no object".format(name))
    return value
