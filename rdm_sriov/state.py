# SPDX-License-Identifier: GPL-3.0-or-later
"""The network plugin's state, in a file that survives a restart.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Dict, Iterator, NamedTuple, Set, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.rdm_sriov.vfs import VfProblem

_VERSION = 1
_FILE = "state.json"

Owner = Tuple[str, str]
"""The owner of a VF: the network's ID, and the address there with its prefix length."""


class Network(NamedTuple):
    """A network as it was requested.

    Attributes:
        pfs: the interfaces of the physical functions; in passthrough mode, those that containers get.
        mode: sriov, or passthrough.
        vlan: of the VFs' packets; 0 for none.
        privileged: whether containers may choose their own hardware addresses.
        prefix: of the interfaces' names in the container, before their number.
        mtu: in bytes; 0 leaves it unchanged.
        keys: of the interfaces in passthrough mode, in the order of `pfs`.
        pkey: of the InfiniBand partition; 0 for that of the VF's own interface.
    """

    pfs: Tuple[str, ...]
    mode: str = "sriov"
    vlan: int = 0
    privileged: bool = False
    prefix: str = "eth"
    mtu: int = 0
    keys: Tuple[str, ...] = ()
    pkey: int = 0


class Endpoint(NamedTuple):
    """The VF that a container has, or will get.

    Attributes:
        network: the network's ID.
        vf: the VF's key.
        address: the container's on this network, with the prefix length.
        hardware: the address of its interface; "" if it has none.
    """

    network: str
    vf: str
    address: str
    hardware: str = ""

    @property
    def owner(self) -> Owner:
        """The owner of the VF."""
        return self.network, self.address


class Reservation(NamedTuple):
    """A VF that is reserved for a container.

    Attributes:
        vf: the VF's key.
        since: seconds since the epoch.
    """

    vf: str
    since: float


_All = Tuple[Dict[str, Network], Dict[str, Endpoint], Dict[Owner, str], Dict[Owner, Reservation], Set[str]]


class NotWritten(VfProblem):
    """The state cannot be written."""


class State:
    """The networks, endpoints and reservations, and the last VF of each owner.

    Args:
        directory: where the file is.

    Attributes:
        networks: by ID.
        endpoints: by ID.
        confirmed: the endpoints that the running engine requested from this process; others count only while
            their VF is away. It is not written.
        last: owner -> key of its last VF: a container that restarts gets the same VF, and with it
            the same hardware address.
        reserved: by owner.
        lost: why the file could not be read; empty if it could.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.networks: Dict[str, Network] = {}
        self.endpoints: Dict[str, Endpoint] = {}
        self.confirmed: Set[str] = set()
        self.last: Dict[Owner, str] = {}
        self.reserved: Dict[Owner, Reservation] = {}
        self.lost = self._read()

    @contextlib.contextmanager
    def change(self, written: bool = True) -> Iterator[None]:
        """Write the changes that the block makes, or undo all of them.

        Args:
            written: whether to undo the changes if they cannot be written; else they stay in memory.

        Raises:
            VfProblem: the changes cannot be written.
        """
        before = self._all()
        try:
            yield
            if self._all()[:-1] != before[:-1]:
                self._write()
        except Exception as error:
            if written or not isinstance(error, NotWritten):
                self.networks, self.endpoints, self.last, self.reserved, self.confirmed = before
                raise

    def _all(self) -> _All:
        return (
            dict(self.networks),
            dict(self.endpoints),
            dict(self.last),
            dict(self.reserved),
            set(self.confirmed),
        )

    def _write(self) -> None:
        """Write the whole state atomically."""
        content = {
            "version": _VERSION,
            "networks": {name: network._asdict() for name, network in self.networks.items()},
            "endpoints": {name: endpoint._asdict() for name, endpoint in self.endpoints.items()},
            "last": [[*owner, key] for owner, key in self.last.items()],
            "reserved": [[*owner, *reservation] for owner, reservation in self.reserved.items()],
        }
        path = os.path.join(self._directory, _FILE)
        try:
            write_whole(path, json.dumps(content, sort_keys=True).encode(), 0o644)
        except OSError as error:
            raise NotWritten("cannot write {0}: {1}".format(path, error.strerror)) from error

    def _read(self) -> str:
        path = os.path.join(self._directory, _FILE)
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
            networks = {name: _network(fields) for name, fields in content["networks"].items()}
            endpoints = {
                name: Endpoint(**_renamed(fields, "function", "vf"))
                for name, fields in content["endpoints"].items()
            }
            last = {(network, address): key for network, address, key in content["last"]}
            reserved = {
                (network, address): Reservation(key, float(since))
                for network, address, key, since in content["reserved"]
            }
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            with contextlib.suppress(OSError):
                os.replace(path, path + ".broken")
            return "{0} cannot be read ({1}): it is kept as {0}.broken".format(path, error)
        self.networks, self.endpoints, self.last, self.reserved = networks, endpoints, last, reserved
        return ""


def _network(fields: Dict[str, Any]) -> Network:
    renamed = _renamed(fields, "parents", "pfs")
    return Network(**{**renamed, "pfs": tuple(renamed["pfs"]), "keys": tuple(renamed["keys"])})


def _renamed(fields: Dict[str, Any], former: str, now: str) -> Dict[str, Any]:
    """Return the fields of a file that a release before 0.6.0 may have written."""
    return {now if name == former else name: value for name, value in fields.items()}
