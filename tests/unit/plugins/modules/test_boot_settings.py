"""sriov_firmware and kernel_parameters on simulated nodes, with stand-ins for the tools."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base import programs
from ansible_collections.rdm.provision.plugins.module_utils.hardware import iommu
from ansible_collections.rdm.provision.plugins.modules import kernel_parameters, sriov_firmware
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.sysfs.build import build
from tests.unit.plugins.modules.running import Failed, run_module

# A stand-in for mstconfig: the settings are in a file next to it, and every call is recorded.
MSTCONFIG = """#!/usr/bin/python3
import json, sys
from pathlib import Path
here = Path(sys.argv[0]).parent
with open(here / "calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
settings = json.loads((here / "settings").read_text())
if "set" in sys.argv:
    for given in sys.argv[sys.argv.index("set") + 1:]:
        name, _, value = given.partition("=")
        settings[name][1] = int(value)
        if int(value) > 127:
            sys.exit("-E- Failed to set configuration: the value is out of range")
    (here / "settings").write_text(json.dumps(settings))
    print("Applying... Done!\\n-I- Please reboot machine to load new configurations.")
    sys.exit()
def shown(name, value):
    return str(value) if name == "NUM_OF_VFS" else ("True(1)" if value else "False(0)")
print("\\nDevice #1:\\n----------\\n\\nDevice type:    ConnectX6\\nDevice:         " + sys.argv[2] + "\\n")
print("Configurations:                              Default         Current         Next Boot")
for name, (current, after) in settings.items():
    star = "*" if current != after else " "
    values = [shown(name, value) for value in (0, current, after)]
    print(star + "        " + name.ljust(36) + "".join(value.ljust(16) for value in values))
"""


class Tools:
    """A directory on the PATH with only the stand-ins of a test."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        directory.mkdir()
        patch.setenv("PATH", str(directory))
        patch.setattr(programs, "_PATH", str(directory))

    def put(self, name: str, program: str) -> None:
        (self.directory / name).write_text(program)
        (self.directory / name).chmod(0o755)

    def firmware(self, sriov: tuple[int, int], vfs: tuple[int, int]) -> None:
        """Put mstconfig there, for an adapter with these current and next settings."""
        self.put("mstconfig", MSTCONFIG)
        (self.directory / "settings").write_text(json.dumps({"SRIOV_EN": sriov, "NUM_OF_VFS": vfs}))

    def calls(self) -> list[Any]:
        path = self.directory / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    return Tools(tmp_path / "bin", monkeypatch)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return build("sriov", tmp_path / "node")


def firmware(tree: Path, vfs: int, **modes: bool) -> dict[str, Any]:
    params = {"pfs": ["ib0"], "vfs": vfs, "sysfs_root": str(tree / "sys")}
    return run_module(sriov_firmware, params, **modes)


QUERY = ["-d", "0000:41:00.0", "-e", "query"]


def test_firmware_is_set_once_and_waits_for_a_reboot(tools: Tools, tree: Path) -> None:
    tools.firmware((0, 0), (0, 0))
    (tree / "sys/bus/pci/devices/0000:41:00.0/sriov_totalvfs").write_text("0\n")
    checked = firmware(tree, 16, check=True, diff=True)
    assert tools.calls() == [QUERY]
    done = firmware(tree, 16, diff=True)
    assert done == checked
    assert (done["changed"], done["reboot_required"]) == (True, True)
    assert done["reasons"] == ["ib0 (0000:41:00.0) offers 0 of 16 VFs"]
    assert done["diff"] == {
        "before": "ib0 (0000:41:00.0): SRIOV_EN=False NUM_OF_VFS=0\n",
        "after": "ib0 (0000:41:00.0): SRIOV_EN=True NUM_OF_VFS=16\n",
    }
    assert tools.calls()[-1] == ["-d", "0000:41:00.0", "--yes", "set", "SRIOV_EN=1", "NUM_OF_VFS=16"]
    again = firmware(tree, 16)
    assert (again["changed"], again["reboot_required"]) == (False, True)
    (tree / "sys/bus/pci/devices/0000:41:00.0/sriov_totalvfs").write_text("16\n")
    assert firmware(tree, 16) == {"changed": False, "reboot_required": False, "reasons": []}


@pytest.mark.parametrize("interface", [True, False])
def test_an_adapter_is_named_by_its_pci_address_too(tools: Tools, tree: Path, interface: bool) -> None:
    tools.firmware((0, 0), (0, 0))
    if not interface:
        shutil.rmtree(tree / "sys/bus/pci/devices/0000:41:00.0/net")
    params = {"pfs": ["0000:41:00.0"], "vfs": 16, "sysfs_root": str(tree / "sys")}
    name = "ib0" if interface else "0000:41:00.0"
    assert run_module(sriov_firmware, params)["reasons"] == [f"{name} (0000:41:00.0) offers 8 of 16 VFs"]
    assert tools.calls()[-1][:2] == ["-d", "0000:41:00.0"]
    with pytest.raises(Failed, match=r"0000:99:00\.0 is neither an interface nor a PCI device of the node"):
        run_module(sriov_firmware, {**params, "pfs": ["0000:99:00.0"]})


def test_a_higher_number_of_vfs_stays(tools: Tools, tree: Path) -> None:
    tools.firmware((0, 0), (0, 64))
    firmware(tree, 8)
    assert tools.calls()[-1][-1] == "NUM_OF_VFS=64"


def test_error_of_the_firmware_tool_is_quoted(tools: Tools, tree: Path) -> None:
    tools.firmware((1, 1), (8, 8))
    with pytest.raises(Failed, match="mstconfig: -E- Failed to set configuration: the value is out of range"):
        firmware(tree, 128)


def test_without_a_tool_nothing_is_done(tools: Tools, tree: Path) -> None:
    with pytest.raises(
        Failed, match=r"the firmware of ib0 \(0000:41:00.0\): neither mstconfig nor mlxconfig"
    ):
        firmware(tree, 8)


def test_other_vendors_and_virtual_interfaces_are_left_alone(tools: Tools, tree: Path) -> None:
    (tree / "sys/class/net/veth0").mkdir()
    (tree / "sys/bus/pci/devices/0000:41:00.0/vendor").write_text("0x8086\n")
    params = {"pfs": ["veth0", "ib0"], "vfs": 8, "sysfs_root": str(tree / "sys")}
    assert run_module(sriov_firmware, params)["changed"] is False
    with pytest.raises(Failed, match="ib7 is neither an interface nor a PCI device of the node"):
        run_module(sriov_firmware, {**params, "pfs": ["ib7"]})
    with pytest.raises(Failed, match="vfs 0 is not a number of VFs"):
        run_module(sriov_firmware, {**params, "vfs": 0})


def kernel(tree: Path, parameters: list[str] | None = None, **modes: bool) -> dict[str, Any]:
    return run_module(kernel_parameters, {"root": str(tree), "parameters": parameters or []}, **modes)


def booted(tree: Path, command_line: str) -> None:
    (tree / "proc").mkdir(exist_ok=True)
    (tree / "proc/cmdline").write_text(f"{command_line}\n")


def test_grub_gets_a_drop_in_of_its_own(tools: Tools, tree: Path) -> None:
    booted(tree, "root=/dev/sda1 quiet")
    tools.put("update-grub", f"#!/bin/sh\necho ran >> {tools.directory}/updates\n")
    path = tree / "etc/default/grub.d/rdm.cfg"
    checked = kernel(tree, check=True, diff=True)
    assert not path.exists()
    done = kernel(tree, diff=True)
    assert done == checked
    assert (done["changed"], done["reboot_required"]) == (True, True)
    assert (
        path.read_text().splitlines()[1] == 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX intel_iommu=on iommu=pt"'
    )
    assert path.stat().st_mode & 0o777 == 0o644
    again = kernel(tree)
    assert (again["changed"], again["reboot_required"]) == (False, True)
    assert again["reasons"] == ["the kernel was booted without intel_iommu=on iommu=pt"]
    assert (tools.directory / "updates").read_text() == "ran\n"
    booted(tree, "root=/dev/sda1 quiet intel_iommu=on,sm_on iommu=pt")
    assert kernel(tree) == {"changed": False, "reboot_required": False, "reasons": []}


def test_settings_refused_by_grub_are_reverted(tools: Tools, tree: Path) -> None:
    booted(tree, "quiet")
    tools.put("update-grub", "#!/bin/sh\necho 'syntax error' >&2\nexit 1\n")
    with pytest.raises(Failed, match="as it was: update-grub: syntax error"):
        kernel(tree)
    assert list((tree / "etc/default/grub.d").iterdir()) == []


def test_grubby_changes_the_entries_that_lack_something(tools: Tools, tree: Path) -> None:
    booted(tree, "quiet")
    (tree / "sys/devices/system/cpu/modalias").write_text(
        "cpu:type:x86,ven0002fam0019mod0011:feature:,0000\n"
    )
    entry = 'index=0\nkernel="/boot/vmlinuz-5.14"\nargs="ro rhgb quiet iommu=pt"\nroot="/dev/sda1"\n'
    tools.put("grubby", f'#!/bin/sh\necho "$@" >> {tools.directory}/calls\n/bin/cat {tools.directory}/menu\n')
    (tools.directory / "menu").write_text(entry)
    assert kernel(tree)["changed"] is True
    lines = (tools.directory / "calls").read_text().splitlines()
    assert lines == ["--info=ALL", "--update-kernel=ALL --args=amd_iommu=on"]
    (tools.directory / "menu").write_text(entry.replace("quiet", "quiet amd_iommu=on"))
    again = kernel(tree)
    assert (again["changed"], again["reboot_required"]) == (False, True)


def test_unknown_boot_loader_is_refused_with_the_parameters_to_add(tools: Tools, tree: Path) -> None:
    booted(tree, "quiet")
    with pytest.raises(
        Failed, match="neither update-grub nor grubby is installed: add intel_iommu=on iommu=pt"
    ):
        kernel(tree)


@pytest.mark.parametrize("odd", ['x"; reboot', "a=$(id)", "a b", "", "a=`id`"])
def test_kernel_parameter_with_shell_characters_is_refused(tools: Tools, tree: Path, odd: str) -> None:
    with pytest.raises(Failed, match="is not a kernel parameter"):
        kernel(tree, [odd])


WORDS = st.sampled_from(
    ["quiet", "iommu=pt", "iommu=on,pt", "intel_iommu=on", "intel_iommu=off", "ro", "a=b=c"]
)


@given(st.lists(WORDS), st.lists(WORDS))
def test_added_parameter_is_no_longer_missing(words: list[str], wanted: list[str]) -> None:
    missing = iommu.lacking(wanted, words)
    assert set(missing) <= set(wanted)
    assert iommu.lacking(wanted, [*words, *missing]) == []
