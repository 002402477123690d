# SPDX-License-Identifier: GPL-3.0-or-later
"""The virtual functions (VFs) that a node should have.

The role sriov, the checks of preflight and the module `rdm.provision.sriov_vf` all use this form.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

from typing import Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.sriov.decision import DesiredPf
from ansible_collections.rdm.provision.plugins.module_utils.sriov.identity import addresses


class DesiredVfs(NamedTuple):
    """The desired VFs of a node, in the options of the module `rdm.provision.sriov_vf`.

    Attributes:
        pfs: the interfaces, or PCI addresses, of the physical functions (PFs) that have VFs.
        number: VFs per PF; 0 for none.
        first_mac: the node's first MAC, from which MACs and GUIDs are derived; empty to leave them unchanged.
        addresses: PF -> MACs or GUIDs of its VFs, in order, instead of derived ones; bytes with colons.
        policy: of InfiniBand VFs.
        vlan: of Ethernet VFs; this and the next two are None to leave the setting unchanged.
        trust: of Ethernet VFs.
        spoof_check: of Ethernet VFs.
    """

    pfs: Sequence[str] = ()
    number: int = 0
    first_mac: str = ""
    addresses: Mapping[str, Sequence[str]] = {}
    policy: str = "Follow"
    vlan: Optional[int] = None
    trust: Optional[bool] = None
    spoof_check: Optional[bool] = None

    def addresses_of(self, index: int) -> List[str]:
        """Return the MACs or GUIDs of the VFs of a PF; empty to leave them unchanged."""
        given = self.addresses.get(self.pfs[index])
        return addresses(self.first_mac, index, self.number) if given is None else list(given)

    def of_pfs(self) -> List[DesiredPf]:
        """Return the desired state of each PF."""
        return [
            DesiredPf(
                pf,
                self.number,
                self.addresses_of(index),
                self.policy,
                self.vlan,
                self.trust,
                self.spoof_check,
            )
            for index, pf in enumerate(self.pfs if self.number else ())
        ]

    def assigned(self) -> Iterator[Tuple[str, str, bool]]:
        """Yield the address of each VF, the VF as text, and whether the address is derived from first_mac."""
        for index, pf in enumerate(self.pfs):
            for number, address in enumerate(self.addresses_of(index)[: self.number]):
                yield address, "VF {0} of {1}".format(number, pf), pf not in self.addresses
