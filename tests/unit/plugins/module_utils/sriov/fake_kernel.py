"""A kernel that has no cards: a laid-out sysfs that answers writes, and `ip`, as Linux does.

It follows Documentation/PCI/pci-iov-howto.rst and what igb was seen to do: no change from one number of VFs
to another, no more than there can be, an interface that goes with its driver, an address that a driver takes
when it is bound.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.sriov.kernel import Kernel
from ansible_collections.rdm.provision.plugins.module_utils.sriov.observed_vfs import Addresses, Links

from tests.fixtures.sysfs.build import build

ZERO_GUID = ":".join(["00"] * 8)
BY_FILES = {"ib0"}
_DRIVERS = {"igb": "igbvf"}  # of VFs, where it is not that of the PF


class FakeKernel(Kernel):
    """See above.

    Args:
        directory: where the node is laid out, from the listing `vfs`.

    Attributes:
        log: what was written and set, in order.
        drivers: those that are loaded.
        ignores: settings that it takes and forgets.
        ip_works: whether `ip link` shows VFs.
        host: addresses on the node's interfaces.
    """

    def __init__(self, directory: Path) -> None:
        build("vfs", directory)
        super().__init__(str(directory / "sys"), settle_s=0.05)
        self.sys = directory / "sys"
        self.log: list[str] = []
        self.drivers = {"mlx5_core", "igbvf"}
        self.ignores: set[str] = set()
        self.ip_works = True
        self.host: dict[str, str] = {}
        self._shown: dict[str, dict[int, dict[str, Any]]] = {}

    # --- what the product calls ---

    def links(self) -> Links:
        return self._shown if self.ip_works else {}

    def addresses(self) -> Addresses:
        return self.host

    def write(self, path: str, text: str) -> None:
        self.log.append(f"{path} = {text}")
        file = self.sys / path
        if path.endswith("/driver/unbind"):
            if not file.parent.exists():
                raise _error(errno.ENOENT)
            self.unbind(text)
        elif path.endswith("/drivers_probe"):
            if not (self.sys / "bus/pci/devices" / text).exists():
                raise _error(errno.ENODEV)
            with contextlib.suppress(OSError):  # the kernel reports no error without a driver
                self.probe(text)
        elif path.endswith("/sriov_numvfs"):
            self.make(file.parent.name, int(text))
        elif not file.exists():
            raise _error(errno.ENOENT)
        elif file.name not in self.ignores:
            file.write_text(text + "\n")

    def ip(self, words: Sequence[str]) -> str:
        self.log.append("ip " + " ".join(words))
        _, _, _, interface, _, number, word, text = words
        vf = self._shown.get(interface, {}).get(int(number))
        if vf is None:
            return "RTNETLINK answers: Invalid argument"
        infiniband = "node guid" in vf
        if (word in ("node_guid", "port_guid", "state")) != infiniband:
            return "RTNETLINK answers: Operation not supported"
        if word in self.ignores:
            return ""
        key = {"mac": "address", "state": "link_state"}.get(word, word.replace("_", " "))
        vf[key] = {"trust": text == "on", "spoofchk": text == "on"}.get(word, text)
        if word == "vlan":
            del vf["vlan"]
            vf["vlan_list"] = [{"vlan": int(text)}] if int(text) else [{}]
        return ""

    # --- what the kernel does ---

    def pci(self, interface: str) -> str:
        return (self.sys / "class/net" / interface / "device").resolve().name

    def vf(self, interface: str, number: int) -> Path:
        """The directory of a VF."""
        return (self.sys / "class/net" / interface / "device" / f"virtfn{number}").resolve()

    def make(self, pf: str, number: int) -> None:
        """Answer a write to sriov_numvfs."""
        device = self.sys / "bus/pci/devices" / pf
        now = int((device / "sriov_numvfs").read_text())
        if number > int((device / "sriov_totalvfs").read_text()):
            raise _error(errno.ERANGE)
        if number == now:
            return
        if number and now:
            raise _error(errno.EBUSY)
        name = _interface(device)
        for link in device.glob("virtfn*"):  # going down, even while a container has one
            if link.exists():  # else its entry stays
                shutil.rmtree(link.resolve(), ignore_errors=True)
                link.unlink()
        shutil.rmtree(device / "sriov", ignore_errors=True)
        self._shown.pop(name, None)
        (device / "sriov_numvfs").write_text("0\n")
        if any((device / f"virtfn{one}").is_symlink() for one in range(number)):
            raise _error(errno.EEXIST)
        for one in range(number):
            self._add(device, name, one)
        (device / "sriov_numvfs").write_text(f"{number}\n")

    def _add(self, device: Path, name: str, number: int) -> None:
        bus = device.name[:8]
        pci = f"{bus}{(number + 1) // 8:02x}.{(number + 1) % 8}"
        vf = device.parent / pci
        vf.mkdir()
        (vf / "physfn").symlink_to(f"../{device.name}")
        (device / f"virtfn{number}").symlink_to(f"../{pci}")
        if name in BY_FILES:
            settings = device / "sriov" / str(number)
            settings.mkdir(parents=True)
            for file, text in (("policy", "Down"), ("node", ZERO_GUID), ("port", ZERO_GUID)):
                (settings / file).write_text(text + "\n")
        elif name.startswith("ib"):
            self._shown.setdefault(name, {})[number] = {
                "vf": number,
                "node guid": ZERO_GUID,
                "port guid": ZERO_GUID,
                "link_state": "disable",
            }
        else:
            self._shown.setdefault(name, {})[number] = {
                "vf": number,
                "address": "00:00:00:00:00:00",
                "vlan_list": [{}],
                "spoofchk": True,
                "trust": False,
            }
        with contextlib.suppress(OSError):
            self.probe(pci)

    def probe(self, pci: str) -> None:
        """Give a VF its driver, if that is loaded; it makes the interface."""
        vf = self.sys / "bus/pci/devices" / pci
        device = (vf / "physfn").resolve()
        own = (device / "driver").resolve().name
        driver = _DRIVERS.get(own, own)
        switch = device / "sriov_drivers_autoprobe"
        if (switch.exists() and switch.read_text().strip() == "0") or driver not in self.drivers:
            raise _error(errno.ENODEV)
        if (vf / "driver").exists():
            return
        (vf / "driver").symlink_to(f"../../drivers/{driver}")
        interface = vf / "net" / f"v{pci[5:].replace(':', '').replace('.', '')}"
        interface.mkdir(parents=True)
        (interface / "address").write_text(self._address(device, pci) + "\n")

    def _address(self, device: Path, pci: str) -> str:
        """The address that a driver finds when it is bound."""
        name = _interface(device)
        number = next(int(link.name[6:]) for link in device.glob("virtfn*") if link.resolve().name == pci)
        if name in BY_FILES:
            return (device / "sriov" / str(number) / "port").read_text().strip()
        shown = self._shown[name][number]
        return str(shown.get("port guid") or shown["address"])

    def unbind(self, pci: str) -> None:
        vf = self.sys / "bus/pci/devices" / pci
        (vf / "driver").unlink()
        shutil.rmtree(vf / "net", ignore_errors=True)

    # --- what others do meanwhile ---

    def hold(self, interface: str, number: int) -> None:
        """Let a container take a VF: its interface is not in this namespace any more."""
        shutil.rmtree(self.vf(interface, number) / "net")

    def give_away(self, interface: str, number: int) -> None:
        """Give a VF to a virtual machine."""
        vf = self.vf(interface, number)
        self.unbind(vf.name)
        (vf / "driver").symlink_to("../../drivers/vfio-pci")

    def use(self, interface: str, number: int, how: str) -> str:
        """Let the node itself use a VF: with an address, in a bridge, or with a VLAN on it."""
        (net,) = (self.vf(interface, number) / "net").iterdir()
        if how == "address":
            self.host[net.name] = "10.1.0.5/24"
        else:
            other = self.sys / "class/net" / {"bridge": "br0", "vlan": f"{net.name}.7"}[how]
            other.mkdir()
            (net / {"bridge": "master", "vlan": f"upper_{other.name}"}[how]).symlink_to(other)
        return net.name

    def unplug(self, interface: str, number: int) -> None:
        """Let a VF vanish. Its PF's entry for it stays."""
        shutil.rmtree(self.vf(interface, number))

    def rediscover(self, interface: str) -> None:
        """Take a card out, and find it again."""
        self.make(self.pci(interface), 0)
        for entry in (self.sys / "class/net" / interface / "device").glob("virtfn*"):
            entry.unlink()

    def interface_address(self, interface: str, number: int) -> str:
        """The address of a VF's interface."""
        (net,) = (self.vf(interface, number) / "net").iterdir()
        return (net / "address").read_text().strip()


def _interface(device: Path) -> str:
    """The interface of a PF, and not that of a partition on it."""
    return next(entry.name for entry in (device / "net").iterdir() if "." not in entry.name)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
