"""Virtual machines with two network cards: containers have a virtual function of each."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.machines import NODES, VFS, MachineLab, running_machines
from tests.e2e.product import ADDRESSES, Product, changed

pytestmark = pytest.mark.long

RAILS = {"ib0": ADDRESSES, "ib1": {"n1": "192.169.17.100", "n2": "192.169.17.101"}}
"""Card -> the addresses of its containers' interfaces, by node."""


@pytest.fixture(scope="module")
def lab(product: Product) -> Iterator[MachineLab]:
    with running_machines(product, "newest", "--rails", "2") as lab:
        yield lab


def hardware(lab: MachineLab, node: str) -> dict[str, str]:
    """Return the hardware addresses of a container's interfaces, by IP address."""
    shown = lab.on(node, "nsenter", "-n", "-t", lab.pid(node), "ip", "-json", "address")
    return {
        one["local"]: link["address"]
        for link in json.loads(shown)
        for one in link["addr_info"]
        if one["family"] == "inet" and link["ifname"] != "lo"
    }


def test_each_container_has_a_vf_of_each_card(lab: MachineLab) -> None:
    made = lab.json("up")
    assert made["ok"]
    assert list(made["fabric"]["rails"]) == list(RAILS)
    seen = {}
    for node in NODES:
        interfaces = hardware(lab, node)
        assert set(interfaces) == {addresses[node] for addresses in RAILS.values()}
        for pf, addresses in RAILS.items():
            assert lab.vf(node, pf=pf)["address"] == interfaces[addresses[node]]
            assert len(lab.at_home(node, pf)) == VFS - 1
            seen.update({one["address"]: (node, pf) for one in lab.vfs(node, pf)})
    assert len(seen) == len(NODES) * len(RAILS) * VFS, "two VFs have the same hardware address"
    for addresses in RAILS.values():
        lab.all_reach(addresses)


def test_a_second_run_changes_nothing(lab: MachineLab) -> None:
    lab.provisioned()
    assert changed(lab.json("up")) == []


def test_a_card_whose_vfs_are_all_taken_is_named(lab: MachineLab) -> None:
    lab.provisioned()
    image = lab.container("n2", "{{.Image}}")
    others = [f"other-{number}" for number in range(VFS - 1)]
    run = ("docker", "run", "-d", "--init", "--network")
    try:
        for name in others:
            lab.on("n2", *run, "ibnet-1", "--name", name, image, "sleep", "infinity")
        assert lab.at_home("n2", "ib1") == []
        assert len(lab.at_home("n2", "ib0")) == VFS - 1
        refused = lab.error_of("n2", *run, "ibnet-1", "--name", "one-more", image, "sleep", "infinity")
        assert "no virtual function of ib1 is free" in refused
        lab.on("n2", *run, "ibnet", "--name", "on-the-other", image, "sleep", "infinity")
    finally:
        lab.on("n2", "docker", "rm", "-f", *others, "one-more", "on-the-other", check=False)
    for addresses in RAILS.values():
        lab.all_reach(addresses)
