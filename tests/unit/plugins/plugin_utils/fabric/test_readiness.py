"""Faults planted in a node that is ready for VFs, one layer at a time, from its /sys to the sentence."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base import programs
from ansible_collections.rdm.provision.plugins.module_utils.hardware import iommu
from ansible_collections.rdm.provision.plugins.module_utils.sriov import observed_vfs, pf
from ansible_collections.rdm.provision.plugins.modules.node_facts import node_facts
from ansible_collections.rdm.provision.plugins.plugin_utils.checks import devices as device_checks
from ansible_collections.rdm.provision.plugins.plugin_utils.checks import ports as port_checks
from ansible_collections.rdm.provision.plugins.plugin_utils.checks import sriov as sriov_checks
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.findings import Findings
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.node import check_node
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state_files import gathered
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import sentences

from tests.fixtures.sysfs.build import build
from tests.unit.plugins.desired_states import wanted as desired
from tests.unit.plugins.node_reports import report

PF = "sys/bus/pci/devices/0000:41:00.0"
CHECKS = (
    sriov_checks.vfs,
    sriov_checks.link_layer,
    sriov_checks.shared_pci_functions,
    sriov_checks.iommu,
    port_checks.ports,
    port_checks.virtual_ports,
    port_checks.opensm,
)
READ = iommu.read
WANTED: Mapping[str, Any] = {"network_driver": "sriov", "network_parent": "ib0", "sriov_vfs": 4}
LISTING = """
Device #1:
----------

Device type:    ConnectX6
Name:           MCX653105A-HDA_Ax
Description:    ConnectX-6 VPI adapter card; H100Gb/s; single-port QSFP56
Device:         0000:41:00.0

Configurations:                              Default         Current         Next Boot
         MEMIC_SIZE_LIMIT                    _256KB(1)       _256KB(1)       DISABLED(0)
         HOST_CHAINING_DESCRIPTORS           Array[0..7]     Array[0..7]     Array[0..7]
{vfs}
{sriov}
The '*' shows parameters with next value different from default/current value.
"""


def listing(current: tuple[bool, int], after: tuple[bool, int]) -> str:
    """What `mstconfig -e query` prints of a firmware that is and will be so: SR-IOV on, number of VFs."""

    def line(name: str, *values: str) -> str:
        star = "*" if len(set(values)) > 1 else " "
        return f"{star}        {name:<36}" + "".join(f"{value:<16}" for value in values)

    def truth(value: bool) -> str:
        return "True(1)" if value else "False(0)"

    return LISTING.format(
        vfs=line("NUM_OF_VFS", "0", str(current[1]), str(after[1])),
        sriov=line("SRIOV_EN", "False(0)", truth(current[0]), truth(after[0])),
    )


class Node:
    """A node that is ready, to spoil."""

    def __init__(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree = build("sriov", tree)
        self.tools = tree / "bin"
        self.tools.mkdir()
        self._monkeypatch = monkeypatch
        self.facts: dict[str, Any] = {}
        self.booted("intel_iommu=on iommu=pt")
        monkeypatch.setenv("PATH", str(self.tools))
        monkeypatch.setattr(programs, "_PATH", str(self.tools))
        self.tool(
            "sminfo", "sminfo: sm lid 1 sm guid 0x100001, activity count 62 priority 0 state 3 SMINFO_MASTER"
        )

    def booted(self, command_line: str) -> None:
        self._monkeypatch.setattr(iommu, "read", lambda root, _: READ(root, command_line))

    def write(self, path: str, text: str) -> None:
        (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / path).write_text(f"{text}\n")

    def remove(self, path: str) -> None:
        (self.tree / path).unlink()

    def without_iommu(self) -> None:
        for group in (self.tree / "sys/kernel/iommu_groups").iterdir():
            (group / "type").unlink()
            group.rmdir()

    def tool(self, name: str, output: str, status: int = 0) -> None:
        """Put a stand-in for one of the vendor's tools on the path."""
        (self.tools / f"{name}.txt").write_text(output)
        (self.tools / name).write_text(f"#!/bin/sh\n/bin/cat {self.tools}/{name}.txt\nexit {status}\n")
        (self.tools / name).chmod(0o755)

    def gather(self, wanted: Mapping[str, Any] = WANTED) -> Any:
        self._monkeypatch.setattr(pf, "opensm", lambda: {})
        found: Any = node_facts(
            str(self.tree / "sys"),
            str(self.tree / "dev"),
            str(self.tree / "docker.sock"),
            sriov=gathered(desired(**wanted)),
        )
        return {**found, "distribution": {"id": "ubuntu"}, **self.facts}

    def findings(
        self,
        wanted: Mapping[str, Any] = WANTED,
        plugin: str = "rdm-sriov",
        options: Mapping[str, str] | None = None,
    ) -> tuple[list[str], list[str]]:
        """Return the problems and the warnings."""
        state = desired(node="n1", plugin=plugin, network_options=options or {}, **wanted)
        findings = Findings([], [])
        facts = self.gather(wanted)
        for check in CHECKS:
            check(state, facts, findings)
        return sentences(findings.problems), sentences(findings.warnings)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_ready_node_has_no_findings(node: Node) -> None:
    assert node.findings() == ([], [])
    assert node.gather()["boot"] == {
        "cpu": "intel",
        "virtual": False,
        "iommu": True,
        "table": "DMAR",
        "parameters": ["intel_iommu=on", "iommu=pt"],
    }


def test_another_driver_of_the_network_needs_no_vfs(node: Node) -> None:
    node.write(f"{PF}/sriov_totalvfs", "0")
    assert node.findings({"network_driver": "macvlan", "network_parent": "ib0"}) == ([], [])


def test_a_virtual_interface_instead_of_the_pf_is_refused(node: Node) -> None:
    (node.tree / "sys/class/net/veth0").mkdir()
    problems, warnings = node.findings({**WANTED, "network_parent": "veth0"})
    assert ["veth0 is no PCI device" in problem for problem in problems] == [True]
    assert warnings == []


OFF, ON = (False, 0), (True, 8)


@pytest.mark.parametrize(
    ("current", "after", "layer", "hint"),
    [
        (OFF, OFF, "firmware:", "mstconfig -d 0000:41:00.0 --yes set SRIOV_EN=1 NUM_OF_VFS=8, and reboot"),
        ((True, 2), (True, 2), "firmware:", "--yes set SRIOV_EN=1 NUM_OF_VFS=8"),
        (OFF, ON, "firmware:", "reboot the node"),
        (ON, ON, "BIOS:", "switch SR-IOV, and memory above 4 GB, on in the BIOS set-up"),
    ],
)
def test_no_vfs_is_refused_with_the_layer_that_is_not_ready(
    node: Node, current: tuple[bool, int], after: tuple[bool, int], layer: str, hint: str
) -> None:
    node.write(f"{PF}/sriov_totalvfs", "0")
    node.tool("mstconfig", listing(current, after))
    problems, warnings = node.findings()
    assert warnings == []
    assert problems[0].startswith(f"n1: {layer} ib0 (0000:41:00.0) offers no VFs")
    assert hint in problems[0]


def test_a_pf_is_named_by_its_pci_address_too(node: Node) -> None:
    node.write(f"{PF}/sriov_totalvfs", "0")
    node.tool("mstconfig", listing(OFF, OFF))
    named = {**WANTED, "network_parent": "0000:41:00.0"}
    assert node.findings(named) == node.findings()
    assert node.gather(named)["fabric_interfaces"] == node.gather()["fabric_interfaces"]
    assert len(node.gather({**WANTED, "network_parent": "0000:41:00.0,ib0"})["fabric_interfaces"]) == 1
    # The layer reports it, and the VFs do not repeat it.
    assert len(node.findings(named)[0]) == 1


def test_the_plan_runs_each_of_these_checks(node: Node) -> None:
    node.write(f"{PF}/sriov_totalvfs", "0")
    node.without_iommu()
    port(node, "mlx5_0", state="1: DOWN", phys_state="2: Polling")
    facts: Any = {
        **report(infiniband=[]),
        **{key: node.gather()[key] for key in ("infiniband", "fabric_interfaces", "boot")},
    }
    findings = check_node(desired(**WANTED), facts)
    assert [one.value for one in findings.problems] == ["firmware:"]
    assert {one.value for one in findings.warnings} >= {"kernel command line:", "link:"}


def test_more_vfs_than_the_firmware_allows_are_refused_with_both_numbers(node: Node) -> None:
    node.tool("mstconfig", listing(ON, ON))
    problems, _ = node.findings({**WANTED, "sriov_vfs": 16})
    assert "offers 8 VFs (sriov_totalvfs), and sriov_vfs asks for 16" in problems[0]
    assert "NUM_OF_VFS=16, and reboot, or set sriov_vfs to 8 or less" in problems[0]


def test_without_a_tool_the_command_that_would_show_it_is_named(node: Node) -> None:
    node.write(f"{PF}/sriov_totalvfs", "0")
    problems, _ = node.findings()
    assert "neither mstconfig nor mlxconfig is installed: install mstflint" in problems[0]


def test_a_tool_that_fails_is_quoted(node: Node) -> None:
    node.write(f"{PF}/sriov_totalvfs", "0")
    node.tool("mstconfig", "-E- Failed to open the device\n", status=3)
    problems, _ = node.findings()
    assert (
        "mstconfig: -E- Failed to open the device: see as root why (mstconfig -d 0000:41:00.0" in problems[0]
    )


@pytest.mark.parametrize(("reboot_ok", "then"), [(True, "reboots the node"), (False, "stops there")])
def test_settings_that_the_run_repairs_are_warnings(node: Node, reboot_ok: bool, then: str) -> None:
    node.write(f"{PF}/sriov_totalvfs", "0")
    node.tool("mstconfig", listing(OFF, OFF))
    wanted = {**WANTED, "sriov_firmware": True, "sriov_reboot_ok": reboot_ok}
    problems, warnings = node.findings(wanted)
    assert problems == []
    assert len(warnings) == 1
    assert then in warnings[0]
    found = node_facts(
        str(node.tree / "sys"),
        str(node.tree / "dev"),
        "/nowhere",
        inputs={"sriov": "1"},
        sriov=gathered(desired(**wanted)),
    )
    assert "ib0 offers 0 of 4 VFs" in found["work"]["sriov"]


def test_another_vendor_has_no_firmware_to_query(node: Node) -> None:
    node.write(f"{PF}/vendor", "0x8086")
    assert "set sriov_vfs to 8 or less" in node.findings({**WANTED, "sriov_vfs": 9})[0][0]
    node.remove(f"{PF}/sriov_totalvfs")
    assert node.findings()[0][0].startswith("n1: BIOS: ib0 (0000:41:00.0) offers no VFs")


def _bonded(node: Node) -> None:
    node.write("sys/class/net/bond0/bonding/slaves", "ib0")
    (node.tree / "sys/class/net/ib0/master").symlink_to("../bond0")


def _is_vf(node: Node) -> None:
    (node.tree / PF / "physfn").symlink_to("../0000:40:00.0")
    (node.tree / "sys/bus/pci/devices/0000:40:00.0").mkdir()


def _old(node: Node) -> None:
    node.remove(f"{PF}/driver")
    (node.tree / PF / "driver").symlink_to("../../drivers/mlx4_core")
    (node.tree / "sys/bus/pci/drivers/mlx4_core").mkdir()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_bonded, "network_parent ib0 is a port of the bond bond0"),
        (_is_vf, "network_parent ib0 is a VF itself (0000:41:00.0)"),
        (_old, "driver mlx4_core"),
    ],
)
def test_an_interface_that_can_have_no_vfs_is_refused(
    node: Node, spoil: Callable[[Node], None], message: str
) -> None:
    spoil(node)
    problems, _ = node.findings()
    assert len(problems) == 1
    assert message in problems[0]


def test_a_card_without_its_driver_is_named_where_the_interface_is_missing(node: Node) -> None:
    node.write("sys/bus/pci/devices/0000:41:00.0/device", "0x101b")
    assert node.gather({**WANTED, "network_parent": "ib7"})["driverless"] == []
    # Neither a VF without one, nor a card that is none of a network.
    for path in ("0000:41:00.0/driver", "0000:41:00.1/driver"):
        node.remove(f"sys/bus/pci/devices/{path}")
    node.write("sys/bus/pci/devices/0000:00:02.0/class", "0x030000")
    assert node.gather()["driverless"] == [], "nothing is missing"
    findings = Findings([], [])
    facts: Any = {
        **node.gather({**WANTED, "network_parent": "ib7"}),
        "interfaces": [{"name": "lo"}, {"name": "eth0"}],
    }
    device_checks.parent(desired(network_driver="sriov", network_parent="ib7"), facts, findings)
    [problem] = findings.problems
    assert problem.sentence == (
        "network_parent ib7 is not an interface of the node, whose kernel has no driver for "
        "0000:41:00.0 (15b3:101b): load its driver (lspci -k names it) or install the kernel's further "
        "modules, or choose one of eth0"
    )


def test_a_vlan_is_refused_before_firmware_that_has_no_vfs_yet_is_changed(node: Node) -> None:
    node.write(f"{PF}/sriov_totalvfs", "0")
    node.tool("mstconfig", listing(OFF, OFF))
    problems, _ = node.findings({**WANTED, "sriov_firmware": True}, options={"vlan": "100"})
    assert [problem.partition(" does")[0] for problem in problems] == ["n1: network_vlan 100"]


def test_the_variable_that_names_the_interface_is_reported(node: Node) -> None:
    _is_vf(node)
    named = {**WANTED, "network_parent": "ib9", "sriov_vf_pfs": ["ib0"]}
    assert node.findings(named)[0][0].startswith("n1: host: sriov_vf_pfs ib0 is a VF itself")


def test_a_bond_instead_of_the_pf_is_refused(node: Node) -> None:
    _bonded(node)
    problems, _ = node.findings({**WANTED, "network_parent": "bond0"})
    assert problems[0].startswith(
        "n1: host: network_parent bond0 is a bond, and VFs belong to one PCI function"
    )


def test_an_iommu_that_the_bios_has_off(node: Node) -> None:
    node.without_iommu()
    node.remove("sys/firmware/acpi/tables/DMAR")
    problems, warnings = node.findings()
    assert problems == []
    assert warnings[0].startswith("n1: BIOS: the IOMMU is off (there is no DMAR")
    assert "switch VT-d on" in warnings[0]


def test_an_iommu_that_the_kernel_has_off(node: Node) -> None:
    node.without_iommu()
    node.booted("root=/dev/sda1 quiet")
    warning = node.findings()[1][0]
    assert warning.startswith(
        "n1: kernel command line: the IOMMU is off (no IOMMU group, /proc/cmdline has nothing"
    )
    assert (
        "$GRUB_CMDLINE_LINUX intel_iommu=on iommu=pt\"' > /etc/default/grub.d/rdm.cfg && update-grub"
        in warning
    )
    node.facts = {"distribution": {"id": "rocky"}}
    assert 'grubby --update-kernel=ALL --args="intel_iommu=on iommu=pt"' in node.findings()[1][0]
    assert node.findings({**WANTED, "sriov_kernel_parameters": True}) == ([], [])


def test_an_amd_node_has_its_own_parameters(node: Node) -> None:
    node.without_iommu()
    node.write("sys/devices/system/cpu/modalias", "cpu:type:x86,ven0002fam0019mod0011:feature:,0000")
    node.write("sys/firmware/acpi/tables/IVRS", "")
    assert "amd_iommu=on iommu=pt" in node.findings()[1][0]


def test_an_iommu_that_translates_is_slow(node: Node) -> None:
    node.booted("intel_iommu=on")
    node.write("sys/kernel/iommu_groups/7/type", "DMA-FQ")
    warning = node.findings()[1][0]
    assert (
        "kernel command line: the IOMMU translates every transfer (ib0 in a group of type DMA-FQ)" in warning
    )


def test_a_virtual_machine_has_its_hypervisors_iommu(node: Node) -> None:
    node.without_iommu()
    node.write("sys/devices/system/cpu/modalias", "cpu:type:x86,ven0000fam0006mod006A:feature:,0000,009F")
    assert node.findings() == ([], [])


def port(node: Node, device: str, **files: str) -> None:
    for name, text in files.items():
        node.write(f"sys/class/infiniband/{device}/ports/1/{name}", text)


def test_a_port_without_a_partner(node: Node) -> None:
    port(node, "mlx5_0", state="1: DOWN", phys_state="2: Polling")
    warning = node.findings()[1][0]
    assert warning.startswith("n1: link: port 1 of mlx5_0 (ib0) is DOWN, Polling: nobody at the other end")


def test_a_port_that_no_subnet_manager_has_configured(node: Node) -> None:
    port(node, "mlx5_0", state="2: INIT", sm_lid="0x0")
    node.tool("sminfo", "sminfo: iberror: failed: query", status=255)
    warnings = node.findings()[1]
    assert len(warnings) == 1
    assert "subnet manager: port 1 of mlx5_0 (ib0) is INIT with its link up, SM LID 0" in warnings[0]
    assert "sminfo -C mlx5_0 -P 1" in warnings[0]


def test_a_subnet_manager_that_is_gone(node: Node) -> None:
    node.tool("sminfo", "sminfo: iberror: failed: query\n", status=255)
    warning = node.findings()[1][0]
    assert "subnet manager: port 1 of mlx5_0 (ib0) is active, and that with LID 1 answers no more" in warning


def test_a_subnet_manager_that_cannot_be_queried_is_not_missed(node: Node) -> None:
    node.tool("sminfo", "sminfo: iberror: failed: Failed to open 'mlx5_0' port '1'\n", status=255)
    assert node.findings() == ([], [])


def test_ports_of_all_vfs_down(node: Node) -> None:
    for device in ("mlx5_1", "mlx5_2"):
        port(node, device, state="1: DOWN")
    warning = node.findings()[1][0]
    assert (
        "subnet manager: the ports of VFs 0, 1 of ib0 are down, and its own is active, so most likely"
        in warning
    )
    assert "virt_enabled 2" in warning


def test_a_vf_that_does_not_follow(node: Node) -> None:
    port(node, "mlx5_2", state="1: DOWN")
    node.write(f"{PF}/sriov/1/policy", "Down")
    warning = node.findings()[1][0]
    assert "driver: the ports of VFs 1 of ib0" in warning
    assert "echo Follow > /sys/class/net/ib0/device/sriov/1/policy" in warning


def test_so_does_one_of_the_kernels_own_driver(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(node.tree / PF / "sriov")
    links = [
        {"vf": number, "node guid": "02:00:00:00:00:00:00:01", "link_state": state}
        for number, state in enumerate(("auto", "disable"))
    ]
    monkeypatch.setattr(observed_vfs, "vf_links", lambda: {"ib0": dict(enumerate(links))})
    assert node.findings() == ([], [])
    for device in ("mlx5_1", "mlx5_2"):
        port(node, device, state="1: DOWN")
    [warning] = node.findings()[1]
    assert "the policy of 1 is not Follow (ip link show ib0): ip link set ib0 vf 1 state auto" in warning


def test_host_of_the_subnet_manager_is_certain(node: Node) -> None:
    node.facts = {"opensm": {"path": "/etc/opensm/opensm.conf", "virt_enabled": ""}}
    assert node.findings() == ([], [])  # it is not in charge
    port(node, "mlx5_0", lid="0x1")
    warning = node.findings()[1][0]
    assert "/etc/opensm/opensm.conf says nothing of virt_enabled, and this node's is in charge" in warning
    node.facts["opensm"]["virt_enabled"] = "2"
    assert node.findings() == ([], [])


def test_partitions_and_second_ports_on_the_function(node: Node) -> None:
    for name in ("ib0.8001", "ib9"):
        (node.tree / PF / "net" / name).mkdir()
    node.write("sys/class/net/ib0.8001/parent", "ib0")
    node.write("sys/class/net/ib0.8001/pkey", "0x8001")
    assert (
        "host: ib0.8001 (pkey 0x8001), ib9 on the PCI function of ib0"
        in node.findings(plugin="upstream")[1][0]
    )
    assert node.findings() == ([], []), "rdm-sriov knows VFs by their PCI addresses"


def test_opensm_configuration(tmp_path: Path) -> None:
    assert pf.opensm(str(tmp_path)) == {}
    (tmp_path / "etc/opensm").mkdir(parents=True)
    path = tmp_path / "etc/opensm/opensm.conf"
    path.write_text("# virt_enabled 2\nguid 0x0\n")
    assert pf.opensm(str(tmp_path)) == {"path": "/etc/opensm/opensm.conf", "virt_enabled": ""}
    path.write_text("virt_enabled 0\nvirt_enabled 2\n")
    assert pf.opensm(str(tmp_path))["virt_enabled"] == "2"
