"""Virtual functions that the kernel makes: containers on two virtual machines talk over them.

Tests without the mark `long` are a suite of `make test`, which runs it alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.machines import BOOT_S, NODES, VFS, MachineLab, running_machines
from tests.e2e.product import ADDRESSES, Product, changed
from trainer.tests.waiting import wait_until

VLAN = 100


@pytest.fixture(
    scope="module",
    params=["26.1", *(pytest.param(engine, marks=pytest.mark.long) for engine in ("20.10", "newest"))],
)
def machines(product: Product, request: pytest.FixtureRequest) -> Iterator[MachineLab]:
    """Two virtual machines with an engine, provisioned by the product with virtual functions in a VLAN."""
    with running_machines(product, request.param) as lab:
        lab.inventory_text(f"network_vlan: {VLAN}\n")
        yield lab


def assert_both_talk(lab: MachineLab) -> None:
    """Assert that each node's container has a VF of its own, in the VLAN, and reaches the other."""
    assert [lab.vf(node)["vlan_list"][0].get("vlan") for node in NODES] == [VLAN] * 2
    lab.all_reach()


def test_up_on_empty_machines_connects_containers_over_vfs(machines: MachineLab) -> None:
    result = machines.json("up")
    assert result["ok"]
    assert [len(machines.vfs(node)) for node in NODES] == [VFS] * 2
    assert_both_talk(machines)


@pytest.mark.long
def test_cluster_is_restored_after_a_reboot(machines: MachineLab) -> None:
    machines.provisioned()
    before = machines.vf("n2")
    machines.reboot("n2")
    state = partial(machines.container, "n2")
    wait_until("the container of n2 runs again", state, lambda now: now == "running", timeout=BOOT_S)
    assert len(machines.vfs("n2")) == VFS
    assert machines.vf("n2")["address"] == before["address"]
    assert_both_talk(machines)
    # A second run has no work.
    assert changed(machines.json("up")) == []


@pytest.mark.long
def test_vlan_is_set_on_the_card(machines: MachineLab) -> None:
    machines.provisioned()
    number = str(machines.vf("n2")["vf"])
    machines.on("n2", "ip", "link", "set", "ib0", "vf", number, "vlan", "0")
    try:
        assert not machines.reaches("n1", ADDRESSES["n2"])
    finally:
        machines.on("n2", "ip", "link", "set", "ib0", "vf", number, "vlan", str(VLAN))
    assert_both_talk(machines)


def restarted(lab: MachineLab, node: str, before: str) -> bool:
    """Whether the container of a node runs in another process than before."""
    state = lab.container(node, "{{.State.Status}} {{.State.Pid}}").split()
    return state[:1] == ["running"] and state[1:] not in (["0"], [before])


@pytest.mark.long
def test_vfs_survive_restarts_of_engine_and_plugin(machines: MachineLab) -> None:
    machines.provisioned()
    before = machines.vf("n2")["address"]
    machines.on("n2", "systemctl", "restart", "rdm-sriov")
    assert_both_talk(machines)
    pid = machines.pid("n2")
    machines.on("n2", "systemctl", "restart", "docker")
    wait_until("the container runs again", partial(restarted, machines, "n2", pid), timeout=BOOT_S)
    assert machines.vf("n2")["address"] == before
    pid = machines.pid("n2")
    # Without a word to the plugin; systemd starts it again.
    machines.on("n2", "systemctl", "kill", "--signal", "KILL", "--kill-whom", "main", "docker")
    wait_until("the container runs again", partial(restarted, machines, "n2", pid), timeout=BOOT_S)
    assert machines.vf("n2")["address"] == before
    assert_both_talk(machines)


@pytest.mark.long
def test_vfs_that_vanish_under_a_container_are_named_and_recreated(machines: MachineLab) -> None:
    machines.provisioned()
    before = machines.vf("n2")["address"]
    # The engine still reports that the container runs and has its address.
    machines.on("n2", "sh", "-c", "echo 0 > /sys/class/net/ib0/device/sriov_numvfs")
    assert machines.vfs("n2") == []
    assert machines.container("n2") == "running"
    found = machines.json("check")["work"]
    assert list(found) == ["n2"]
    assert "the number of VFs of ib0 is 0, not 7" in found["n2"]["sriov"]
    lost = f"the container rdm is without its interface ({ADDRESSES['n2']}), not running"
    assert found["n2"]["container"] == [lost]
    result = machines.json("verify", expect=1)
    assert f"the container does not have the address {ADDRESSES['n2']}" in result["nodes"]["n2"]["why"]
    assert machines.json("up")["ok"]
    assert machines.vf("n2")["address"] == before
    assert_both_talk(machines)
    assert changed(machines.json("up")) == []


@pytest.mark.long
def test_more_containers_than_vfs_are_refused(machines: MachineLab) -> None:
    machines.provisioned()
    image, network = machines.container("n2", "{{.Image}} {{.HostConfig.NetworkMode}}").split()
    others = [f"other-{number}" for number in range(VFS - 1)]
    try:
        for name in others:
            machines.on(
                "n2", "docker", "run", "-d", "--name", name, "--network", network, image, "sleep", "infinity"
            )
        taken = {machines.vf("n2", name)["vf"] for name in ("rdm", *others)}
        assert taken == set(range(VFS))
        refused = machines.error_of(
            "n2", "docker", "run", "--name", "one-more", "--network", network, image, "true"
        )
        assert "no virtual function of ib0 is free" in refused
    finally:
        machines.on("n2", "docker", "rm", "-f", *others, "one-more", check=False)
    assert_both_talk(machines)


@pytest.mark.long
def test_vf_without_its_driver_is_named_and_repaired_without_affecting_others(machines: MachineLab) -> None:
    """A single VF cannot be unplugged: only its driver can be removed."""
    machines.provisioned()
    before = machines.vf("n2")
    image, network = machines.container("n2", "{{.Image}} {{.HostConfig.NetworkMode}}").split()
    others = [f"other-{number}" for number in range(VFS - 1)]
    run = ("docker", "run", "-d", "--init", "--network", network, "--name")
    virtual = f"/sys/class/net/ib0/device/virtfn{before['vf']}"
    assert not machines.there("n2", f"{virtual}/remove")
    pci = machines.on("n2", "readlink", "-f", virtual).strip().rpartition("/")[2]
    try:
        machines.on("n2", *run, others[0], image, "sleep", "infinity")
        pid, neighbour = machines.pid("n2", others[0]), machines.vf("n2", others[0])["address"]
        machines.on("n2", "sh", "-c", f"echo {pci} > {virtual}/driver/unbind")
        found = machines.json("check")["work"]
        assert list(found) == ["n2"]
        assert [
            reason for reason in found["n2"]["sriov"] if reason.startswith(f"VF {before['vf']} of ib0 is unb")
        ]
        lost = f"the container rdm is without its interface ({ADDRESSES['n2']}), not running"
        assert found["n2"]["container"] == [lost]
        # The plugin hands it to no container, and reports why none is free.
        for name in others[1:]:
            machines.on("n2", *run, name, image, "sleep", "infinity")
        refused = machines.error_of("n2", *run, "one-more", image, "sleep", "infinity")
        assert f"containers have all {VFS - 1}, and {pci} has no driver" in refused
        # While containers have all the others.
        assert machines.json("up")["ok"]
        assert machines.vf("n2")["address"] == before["address"]
        assert machines.vf("n2", others[0])["address"] == neighbour
        assert machines.pid("n2", others[0]) == pid
        assert_both_talk(machines)
    finally:
        machines.on("n2", "docker", "rm", "-f", *others, "one-more", check=False)
    assert changed(machines.json("up")) == []


PERFTEST = ("ib_write_bw", "--ib-dev=rxe0", "--duration=2", "--report_gbits", "--CPU-freq")
GATHER = """
- hosts: all
  gather_facts: false
  become: true
  tasks:
    - rdm.provision.rdma_devices:
        function: "{{ vfs[inventory_hostname] }}"
      register: found
    - ansible.builtin.copy:
        content: "{{ found | to_json }}"
        dest: "{{ results }}/{{ inventory_hostname }}"
        mode: "0644"
      delegate_to: localhost
      become: false
"""


@pytest.mark.long
def test_soft_roce_on_a_vf_is_found_as_its_rdma_device_and_carries_data(
    machines: MachineLab, tmp_path: Path
) -> None:
    """Between the machines: soft RoCE of kernel 6.12 has its sockets only in the node's namespace."""
    machines.provisioned()
    vfs = {}
    try:
        for number, node in enumerate(NODES, start=1):
            vf = next(one["vf"] for one in machines.vfs(node) if one["vf"] != machines.vf(node)["vf"])
            path = machines.on(node, "readlink", "-f", f"/sys/class/net/ib0/device/virtfn{vf}").strip()
            vfs[node] = path.rpartition("/")[2]
            interface = machines.on(node, "ls", f"{path}/net").strip()
            machines.on(node, "ip", "link", "set", "ib0", "vf", str(vf), "vlan", "0")
            machines.on(node, "ip", "addr", "add", f"10.77.0.{number}/24", "dev", interface)
            machines.on(node, "ip", "link", "set", interface, "up")
            machines.on(node, "modprobe", "rdma_rxe")
            machines.on(node, "rdma", "link", "add", "rxe0", "type", "rxe", "netdev", interface)
        (tmp_path / "gather.yml").write_text(GATHER)
        given = json.dumps({"vfs": vfs, "results": str(tmp_path)})
        play = ["ansible-playbook", str(tmp_path / "gather.yml"), "--inventory", str(machines.inventory)]
        machines.product.run(*play, "--extra-vars", given)
        for node in NODES:
            found = json.loads((tmp_path / node).read_text())
            assert found["device"] == "rxe0"
            assert found["ways"] == {"gid_attrs": ["rxe0"], "parent": ["rxe0"]}
            assert "/dev/infiniband/uverbs0" in found["paths"]
        machines.on("n1", "systemd-run", "--unit=perftest", *PERFTEST)
        wait_until("perftest listens", lambda: ":18515 " in machines.on("n1", "ss", "-ltn"))
        output = machines.on("n2", *PERFTEST, "10.77.0.1")
        measured = re.search(r"^ *65536 +[0-9]+ +[0-9.]+ +([0-9.]+) ", output, re.MULTILINE)
        assert measured, output
        assert float(measured[1]) > 0
    finally:
        for node in NODES:
            machines.on(node, "systemctl", "stop", "perftest", check=False)
            machines.on(node, "rdma", "link", "delete", "rxe0", check=False)
            machines.on(node, "ip", "addr", "flush", "to", "10.77.0.0/24", check=False)
