"""RDMA between containers: soft RoCE on virtual functions, with a kernel that knows it in namespaces.

Two virtual machines with the kernel of Debian's backports. Soft RoCE is removed when its interface moves. So
its device is made in the container's network namespace after the start, with the numbers of the character
device that the container was given before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.e2e.machines import BOOT_S, MachineLab
from tests.e2e.product import ADDRESSES, Product
from tests.labs import lab_name, left_over
from trainer.tests.waiting import wait_until

pytestmark = pytest.mark.long

NODES = ("n1", "n2")
FIRST_KERNEL = (7, 0)
DEVICE = "/dev/infiniband/uverbs0"
# Two machines without KVM on two cores are not equally fast.
NOISE = ("-e", "verify_rdma_slow_share=0.3")


@pytest.fixture(scope="module")
def machines(product: Product) -> Iterator[MachineLab]:
    """Two virtual machines with the newest kernel, provisioned by the product; containers have a uverbs0."""
    lab = MachineLab(product, lab_name("e2e-vm-rdma"))
    try:
        if left_over(lab.name):
            lab.lab("down")
        lab.lab("up", "--hardware", "vm", "--nodes", "2", "--kernel", "newest")
        release = lab.on("n2", "uname", "-r").split(".")
        assert tuple(int(part) for part in release[:2]) >= FIRST_KERNEL
        for node in NODES:
            soft_roce(lab, node, "ib0")
        lab.inventory_text(f"container_devices: ['{DEVICE}:{DEVICE}:rwm']\n")
        assert lab.json("up")["ok"]
        for node in NODES:
            lab.on(node, "rdma", "link", "delete", "rxe0")
        yield lab
    finally:
        lab.hang_up()
        lab.lab("down")
    assert not left_over(lab.name)


def soft_roce(lab: MachineLab, node: str, interface: str, *, inside: tuple[str, ...] = ()) -> None:
    """Make the RDMA device rxe0 of an interface."""
    lab.on(node, "modprobe", "rdma_rxe")
    lab.on(node, *inside, "rdma", "link", "add", "rxe0", "type", "rxe", "netdev", interface)


def namespace(lab: MachineLab, node: str, name: str = "rdm") -> tuple[str, ...]:
    """Return the command prefix that runs a program in a container's network namespace."""
    return ("nsenter", "-n", "-t", lab.pid(node, name))


def interface(lab: MachineLab, node: str) -> str:
    """Return the name of the VF's interface in a node's container."""
    shown = json.loads(lab.on(node, *namespace(lab, node), "ip", "-json", "address"))
    (found,) = [
        link["ifname"]
        for link in shown
        if ADDRESSES[node] in [address.get("local") for address in link["addr_info"]]
    ]
    return str(found)


@pytest.fixture(scope="module")
def rdma(machines: MachineLab) -> MachineLab:
    """The same; each container's VF has an RDMA device in the container's namespace."""
    for node in NODES:
        soft_roce(machines, node, interface(machines, node), inside=namespace(machines, node))
    return machines


@contextmanager
def slow_link(lab: MachineLab, node: str, rate: str) -> Iterator[None]:
    """Slow down what a node's container sends."""
    queue = (*namespace(lab, node), "tc", "qdisc")
    at = ("dev", interface(lab, node), "root")
    lab.on(node, *queue, "add", *at, "netem", "rate", rate)
    try:
        yield
    finally:
        lab.on(node, *queue, "delete", *at)


def test_perftest_runs_between_the_containers_and_each_node_gets_a_verdict(rdma: MachineLab) -> None:
    result = rdma.json("verify", "--rdma", *NOISE)["rdma"]
    assert (result["ok"], result["findings"]) == (True, [])
    assert {node: one["ok"] for node, one in result["verdicts"].items()} == dict.fromkeys(NODES, True)
    for node, other in (NODES, NODES[::-1]):
        assert result["bandwidth_gbit"][node][other] > 0
    assert result["latency_us"]["n1"]["n2"] > 0


def test_a_slow_link_is_named_with_its_direction(rdma: MachineLab) -> None:
    with slow_link(rdma, "n2", "4mbit"):
        result = rdma.json("verify", "--rdma", *NOISE, expect=1)["rdma"]
    (finding,) = result["findings"]
    assert finding.startswith("n1 <-> n2: n2 sends n1 ")
    assert result["bandwidth_gbit"]["n2"]["n1"] < 0.3 * result["bandwidth_gbit"]["n1"]["n2"]
    assert rdma.json("verify", "--rdma", *NOISE)["rdma"]["ok"]


def test_a_container_without_its_device_is_named(rdma: MachineLab) -> None:
    rdma.on("n2", *namespace(rdma, "n2"), "rdma", "link", "delete", "rxe0")
    result = rdma.json("verify", "--rdma", *NOISE, expect=1)["rdma"]
    assert not result["verdicts"]["n2"]["ok"]
    assert any(finding.startswith("n2: ") for finding in result["findings"]), result["findings"]
    soft_roce(rdma, "n2", interface(rdma, "n2"), inside=namespace(rdma, "n2"))
    assert rdma.json("verify", "--rdma", *NOISE)["rdma"]["ok"]


SHOWN = "/run/rdm-test-infiniband"
DROP_IN = "/run/systemd/system/rdm-sriov.service.d"
EXTRA = "extra"
# Modules that hold the devices, in the order of unloading.
MODULES = (
    *("rdma_rxe", "rdma_ucm", "rdma_cm", "iw_cm", "ib_cm", "ib_umad", "ib_ipoib"),
    *("ib_uverbs", "ib_uverbs_support", "ib_core"),
)
# The mode is set when the last of them is loaded.
UNLOADED = (
    f"for module in {' '.join(MODULES)}; do",
    "  [ ! -d /sys/module/$module ] || modprobe -r $module || { grep $module /proc/modules >&2; exit 1; }",
    "done",
)


def script(lab: MachineLab, node: str, *lines: str) -> str:
    """Run shell lines on a node, until one fails."""
    return lab.on(node, "sh", "-c", "\n".join(("set -e", *lines)))


def devices(lab: MachineLab, node: str, *inside: str) -> list[str]:
    """Return the RDMA devices of a network namespace of a node."""
    return [one["ifname"] for one in json.loads(lab.on(node, *inside, "rdma", "-j", "dev") or "[]")]


def moved(lab: MachineLab, before: str = "") -> bool:
    """Whether the container, in another process than before, has rxe0, and the node has it no more."""
    pid = lab.on("n1", "docker", "inspect", "--format", "{{.State.Pid}}", EXTRA).strip()
    if pid in ("0", before) or devices(lab, "n1"):
        return False
    shown = lab.inside("n1", "ls", "/sys/class/infiniband", name=EXTRA, check=False).split()
    return shown == devices(lab, "n1", "nsenter", "-n", "-t", pid) == ["rxe0"]


@pytest.fixture
def exclusive(machines: MachineLab) -> Iterator[str]:
    """Set n1's RDMA devices to the mode exclusive; yield the hardware address of the VF with rxe0.

    Soft RoCE is removed with its interface, and is no child of a PCI function. So it is on ib0, which stays,
    and rdm-sriov's /sys/class/infiniband shows it like a VF's device of a card's driver. Everything
    else is the kernel's: the mode, the device and its moves between namespaces. The devices that containers
    of n1 had before are gone.
    """
    vf = machines.vfs("n1")[-1]
    path = machines.on("n1", "readlink", "-f", f"/sys/class/net/ib0/device/virtfn{vf['vf']}").strip()
    try:
        script(machines, "n1", *UNLOADED, "modprobe ib_core netns_mode=0")
        soft_roce(machines, "n1", "ib0")
        script(
            machines,
            "n1",
            f"mkdir -p {SHOWN}/rxe0 {DROP_IN}",
            f"ln -sfn {path} {SHOWN}/rxe0/device",
            f"printf '[Service]\nBindReadOnlyPaths={SHOWN}:/sys/class/infiniband\n' >{DROP_IN}/test.conf",
            "systemctl daemon-reload",
            "systemctl restart rdm-sriov",
        )
        yield str(vf["address"])
    finally:
        # This returns the VF and the device while the plugin still knows them.
        machines.on("n1", "docker", "rm", "-f", EXTRA, check=False)
        script(
            machines,
            "n1",
            f"rm -rf {DROP_IN} {SHOWN}",
            "systemctl daemon-reload",
            "systemctl restart rdm-sriov",
            *UNLOADED,
            "modprobe ib_core",
        )


def test_device_follows_its_container_and_returns_in_exclusive_mode(
    machines: MachineLab, exclusive: str
) -> None:
    assert "exclusive" in machines.on("n1", "rdma", "system")
    image, network = machines.container("n1", "{{.Image}} {{.HostConfig.NetworkMode}}").split()
    options = ("--restart", "always", "--network", network, "--mac-address", exclusive)
    machines.on("n1", "docker", "run", "-d", "--name", EXTRA, *options, image, "sleep", "infinity")
    in_container = partial(moved, machines)
    wait_until("the container has the device", in_container, timeout=BOOT_S)
    for restart in (("docker", "restart", "--time", "1", EXTRA), ("systemctl", "restart", "docker")):
        before = machines.pid("n1", EXTRA)
        machines.on("n1", *restart)
        wait_until(f"it has it again after {restart[0]}", partial(moved, machines, before), timeout=BOOT_S)
    machines.on("n1", "docker", "rm", "-f", EXTRA)
    wait_until("the device is the node's again", lambda: devices(machines, "n1") == ["rxe0"], timeout=BOOT_S)
    output = machines.on("n1", "journalctl", "--unit", "rdm-sriov", "--output", "cat")
    assert "the RDMA device" not in output
