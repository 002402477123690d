#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create and configure the virtual functions of network cards, and restore them at boot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sriov_vf
short_description: Make and configure the virtual functions (VFs) of network cards
description:
  - Gives each physical function (PF) the wanted number of VFs, and each VF its policy and GUIDs (InfiniBand)
    or its MAC, VLAN, trust and spoof check (Ethernet), and binds it again where its driver has to learn them.
  - VFs are known by their PCI addresses. All PFs are evaluated before the first is changed.
  - A PF is never changed while a container, or a virtual machine, has one of its VFs. The kernel would do it.
    Only a VF without a driver, which nobody has, is bound all the same.
  - The same code is left on the node as a program that a systemd unit starts before C(docker.service), since
    the kernel forgets VFs when it stops. Where systemd does not run, the answer says what to start.
  - For mlx5 with NVIDIA's driver or the kernel's, and for any PF that has C(sriov_numvfs) and is set up with
    C(ip link). mlx4 is refused.
extends_documentation_fragment: rdm.provision.attributes.changes
attributes:
  diff_mode:
    support: full
    description: Shows each PF with its VFs, as they are and as they shall be.
options:
  pfs:
    description:
      - Network interfaces, or PCI addresses, of the PFs.
      - A PF's place in this list is part of the addresses of its VFs, so add further ones at the end.
    aliases: [parents]
    type: list
    elements: str
    default: []
  number:
    description: How many VFs each PF shall have.
    type: int
    default: 0
  first_mac:
    description: The first of the node's MACs in the address plan; empty leaves MACs and GUIDs as they are.
    type: str
    default: ""
  addresses:
    description: >-
      For a PF, the MACs or GUIDs of its VFs, in order, instead of those that follow O(first_mac).
    type: dict
    default: {}
  policy:
    description: Whether the port of an InfiniBand VF follows that of the PF, is always up, or always down.
    type: str
    choices: [Follow, Up, Down]
    default: Follow
  vlan:
    description: VLAN of all packets of Ethernet VFs, 0 for none; unset leaves it as it is.
    type: int
  trust:
    description: Whether Ethernet VFs may choose their own addresses; unset leaves it as it is.
    type: bool
  spoof_check:
    description: Whether packets of Ethernet VFs with other senders are dropped; unset leaves it as it is.
    type: bool
  containers_end:
    description:
      - Of how many VFs the containers have ended before this, as when another network plugin takes over, by
        the interface of the physical function.
      - In check mode they have not, and that many do not stand against it then.
    type: dict
    default: {}
  cluster:
    description: Whose VFs they are. What another cluster keeps on the node is not touched.
    type: str
    default: rdm
  state:
    description:
      - V(absent) takes away the VFs that this module has made and nobody has, and what restores them. Those
        that it found it leaves.
    type: str
    choices: [present, absent]
    default: present
  sysfs_root:
    description: Where the kernel's sysfs is; another directory in tests.
    type: path
    default: /sys
  packed:
    description: The program, packed from C(rdm_sriov/) of the collection. Set by the action plugin.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Create and configure the virtual functions
  rdm.provision.sriov_vf:
    pfs: [ib0, ib1]
    number: 8
    first_mac: 06:5e:91:06:40:00

- name: Remove the virtual functions that were made here
  rdm.provision.sriov_vf:
    state: absent
"""

RETURN = r"""
pfs:
  description: The PFs with C(pf), C(pci), C(num_vfs) and C(vfs), as M(rdm.provision.node_facts) reports them.
  returned: O(state=present)
  type: list
  elements: dict
kept:
  description: Why VFs that were to go are still there, in sentences.
  returned: always
  type: list
  elements: str
  sample: []
note:
  description: What keeps them from being there again after a restart of the node; empty for nothing.
  returned: always
  type: str
  sample: ""
"""

import contextlib
import os
from typing import Any, Dict, List, Sequence, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.module_utils.base.file_diff import difference
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.systemd import systemd_runs
from ansible_collections.rdm.provision.plugins.module_utils.base.zip_program import from_argument
from ansible_collections.rdm.provision.plugins.module_utils.constants import CLUSTER
from ansible_collections.rdm.provision.plugins.module_utils.sriov import kept_vfs
from ansible_collections.rdm.provision.plugins.module_utils.sriov.decision import (
    DesiredPf,
    described,
    host_use,
    next_steps,
    planned,
)
from ansible_collections.rdm.provision.plugins.module_utils.sriov.desired_vfs import DesiredVfs
from ansible_collections.rdm.provision.plugins.module_utils.sriov.identity import normal
from ansible_collections.rdm.provision.plugins.module_utils.sriov.kernel import Kernel, bring, evaluate
from ansible_collections.rdm.provision.plugins.module_utils.sriov.observed_vfs import Pf, to_fact

ARGUMENT_SPEC: Dict[str, Any] = {
    "pfs": {
        "type": "list",
        "elements": "str",
        "default": [],
        "aliases": ["parents"],
        "deprecated_aliases": [{"name": "parents", "version": "0.8.0", "collection_name": "rdm.provision"}],
    },
    "number": {"type": "int", "default": 0},
    "first_mac": {"type": "str", "default": ""},
    "addresses": {"type": "dict", "default": {}},
    "policy": {"type": "str", "choices": ["Follow", "Up", "Down"], "default": "Follow"},
    "vlan": {"type": "int"},
    "trust": {"type": "bool"},
    "spoof_check": {"type": "bool"},
    "containers_end": {"type": "dict", "default": {}},
    "cluster": {"type": "str", "default": CLUSTER},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "sysfs_root": {"type": "path", "default": "/sys"},
    "packed": {"type": "str", "required": True},
}


class Change:
    """All changes of one call, planned before the first one is made."""

    def __init__(self, module: AnsibleModule, kernel: Kernel) -> None:
        self._module = module
        self._kernel = kernel
        self._params: Dict[str, Any] = module.params
        self.kept: List[str] = []
        self.pairs: List[Tuple[Pf, DesiredPf]] = []
        before = self._read()
        mine = before.cluster in ("", self._params["cluster"])
        if self._params["state"] == "present":
            if not mine:
                raise NodeError(
                    "the VFs of this node belong to the cluster {0}: remove them there first "
                    "(sriov_state: absent), or delete {1} if it is gone".format(
                        before.cluster, os.path.join(kept_vfs.DIRECTORY, kept_vfs.FILE_NAME)
                    )
                )
            ending = self._params["containers_end"] if module.check_mode else {}
            self.pairs = evaluate(kernel, wanted_of(self._params), ending)
        known = {one.pci: one for one in before.pfs}
        named = {found.pci for found, _ in self.pairs}
        pfs = [
            kept_vfs.KeptPf(found.pci, found.number != one.number or _was_made(known, found.pci), one)
            for found, one in self.pairs
        ]
        stays = self._give_back([one for one in before.pfs if one.pci not in named]) if mine else ()
        self.after = kept_vfs.KeptVfs(self._params["cluster"], (*pfs, *stays)) if mine else before
        self._files = (
            kept_vfs.files(kept_vfs.DIRECTORY, self.after, from_argument(self._params["packed"]))
            if self.after.pfs and mine
            else {}
        )
        self._gone = [] if self._files or not mine else _ours()
        self._systemd = systemd_runs()

    @property
    def note(self) -> str:
        """Why the VFs will not be restored at boot."""
        if self._systemd or not self._files:
            return ""
        return "systemd does not run here: let what starts the node run {0} before the Docker Engine".format(
            kept_vfs.PROGRAM
        )

    @property
    def stale(self) -> List[str]:
        """The files to write."""
        return [path for path, (content, _) in self._files.items() if _content(path) != content]

    @property
    def enables(self) -> bool:
        """Whether the unit has to be enabled."""
        return bool(self._files) and self._systemd and not os.path.lexists(kept_vfs.enabled_link())

    @property
    def changes(self) -> bool:
        """Whether anything changes."""
        work = any(next_steps(found, one) for found, one in self.pairs)
        return work or bool(self.stale or self._gone) or self.enables

    def diff(self) -> List[Dict[str, str]]:
        """Return one diff per PF and file."""
        shown = []
        for found, one in self.pairs:
            now = described(found)
            then = planned(found, one) if next_steps(found, one) else now
            shown.append(difference(found.name, now, then))
        for path in self.stale:
            before, after = _content(path), self._files[path][0]
            if path == kept_vfs.PROGRAM:
                shown.append(difference(path, "another program\n" if before else "", "(a program)\n"))
            else:
                shown.append(difference(path, before.decode("utf-8", "replace"), after.decode()))
        shown += [difference(path, "file\n", "") for path in self._gone]
        return [one for one in shown if one["before"] != one["after"]]

    def apply(self) -> List[Pf]:
        """Make the changes; return the PFs afterwards.

        The record is written first, so that after an interruption the next call knows who owns the VFs.
        """
        stale = self.stale
        for path in stale:
            write_whole(path, *self._files[path])
        if self.enables or (stale and self._systemd):
            self._systemctl("daemon-reload")
        if self.enables:
            self._systemctl("enable", kept_vfs.UNIT)
        for found, one in self.pairs:
            bring(self._kernel, one._replace(pf=found.pci))
        if self._gone:
            if self._systemd and os.path.lexists(kept_vfs.enabled_link()):
                self._systemctl("disable", kept_vfs.UNIT)
            for path in self._gone:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            for directory in (kept_vfs.DIRECTORY, os.path.dirname(kept_vfs.PROGRAM)):
                with contextlib.suppress(OSError):  # others may have files there
                    os.rmdir(directory)
            if self._systemd:
                self._systemctl("daemon-reload")
        return [self._kernel.read(found.pci) for found, _ in self.pairs]

    def _read(self) -> kept_vfs.KeptVfs:
        """Return the node's record; an empty one if it cannot be read."""
        try:
            return kept_vfs.read(kept_vfs.DIRECTORY)
        except NodeError as problem:
            if self._params["state"] == "absent":
                self.kept.append("{0}, so all VFs stay: write 0 to their sriov_numvfs".format(problem))
            return kept_vfs.NOTHING

    def _give_back(self, pfs: Sequence[kept_vfs.KeptPf]) -> Tuple[kept_vfs.KeptPf, ...]:
        """Plan to remove the VFs that we created; return the PFs that keep VFs which are in use."""
        stays = []
        for one in pfs:
            try:
                found = self._kernel.read(one.pci)
            except NodeError:
                continue  # the card and its VFs are gone
            if not one.made or not found.number:
                continue
            holders = [
                "VF {0} ({1})".format(vf.number, ", whose ".join(filter(None, [vf.pci, host_use(vf)])))
                for vf in found.vfs
                if vf.holder or vf.host_use
            ]
            if holders:
                self.kept.append(
                    "{0} keeps its {1} VFs, because {2} is in use: run again when that has ended".format(
                        found.name, found.number, " and ".join(holders)
                    )
                )
                stays.append(one)
            else:
                self.pairs.append((found, DesiredPf(one.pci, 0)))
        return tuple(stays)

    def _systemctl(self, *words: str) -> None:
        status, _, output = self._module.run_command(["systemctl", *words])
        if status:
            raise NodeError("systemctl {0}: {1}".format(" ".join(words), " ".join(output.split()) or status))


def wanted_of(params: Dict[str, Any]) -> List[DesiredPf]:
    """Return the desired state of each PF.

    Raises:
        NodeError: the parameters are wrong.
    """
    if params["number"] < 1 or not params["pfs"]:
        raise NodeError(
            "number {0} and pfs {1}: name at least one PF and one VF".format(params["number"], params["pfs"])
        )
    unknown = sorted(set(params["addresses"]) - set(params["pfs"]))
    if unknown:
        raise NodeError("addresses has {0}, which is none of pfs".format(unknown[0]))
    given = params["first_mac"]
    try:
        first_mac = normal(given) if given else ""
        listed = {}
        for pf, given in params["addresses"].items():
            listed[pf] = [normal(str(one)) for one in given]
    except (TypeError, ValueError) as error:
        raise NodeError("an address, {0}, {1}".format(given, error)) from None
    settings = (params["policy"], params["vlan"], params["trust"], params["spoof_check"])
    try:
        return DesiredVfs(params["pfs"], params["number"], first_mac, listed, *settings).of_pfs()
    except ValueError as error:
        raise NodeError(str(error)) from None


def _was_made(known: Dict[str, kept_vfs.KeptPf], pci: str) -> bool:
    return pci in known and known[pci].made


def _ours() -> List[str]:
    paths = [
        os.path.join(kept_vfs.UNIT_DIRECTORY, kept_vfs.UNIT),
        kept_vfs.PROGRAM,
        os.path.join(kept_vfs.DIRECTORY, kept_vfs.FILE_NAME),
    ]
    return [path for path in paths if os.path.lexists(path)]


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Return the module's result.

    Raises:
        NodeError: it failed. Nothing was changed, unless the kernel refused a change.
    """
    change = Change(module, Kernel(module.params["sysfs_root"]))
    result: Dict[str, Any] = {"changed": change.changes, "kept": change.kept, "note": change.note}
    if module._diff:
        result["diff"] = change.diff()
    found = [one for one, _ in change.pairs]
    if result["changed"] and not module.check_mode:
        with kept_vfs.alone(kept_vfs.DIRECTORY):
            found = change.apply()
    if module.params["state"] == "present":
        result["pfs"] = [to_fact(one) for one in found]
    for sentence in (*change.kept, *filter(None, [change.note])):
        module.warn(sentence)
    return result


if __name__ == "__main__":
    main()
