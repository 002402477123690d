"""What goes with the function that a container gets, as far as the node can tell it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.engine import container_functions
from ansible_collections.rdm.provision.plugins.module_utils.engine.container_functions import (
    Functions,
    Given,
    devices,
    lasting_mac,
)
from ansible_collections.rdm.provision.plugins.module_utils.engine.docker_api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.node.rdma import RdmaProblem

from tests.fixtures.sysfs.build import build

MAC = "0c:42:a1:5e:10:01"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return build("rdma", tmp_path)


def paths(tree: Path, given: Given) -> list[str] | None:
    found = devices(given, str(tree / "sys"), str(tree / "dev"))
    return None if found is None else [Path(one).name for one in found]


def test_devices_are_those_of_the_function_wherever_its_interface_is(node: Path) -> None:
    assert paths(node, Given("0000:41:00.1", "ib1")) == ["uverbs1", "umad1", "issm1", "rdma_cm"]
    assert paths(node, Given("0000:41:00.2")) == ["uverbs2", "umad2", "issm2", "rdma_cm"]
    assert paths(node, Given("0000:01:10.2", "eth3")) == []
    # A function without a PCI address is found by its interface, as long as that is here.
    assert paths(node, Given("eth2", "eth2")) == ["uverbs8", "umad8", "rdma_cm"]
    assert paths(node, Given("eth2")) is None
    assert paths(node, Given("")) is None


@pytest.mark.parametrize("given", [Given("0000:41:00.1", "ib1"), Given("0000:41:00.2")])
def test_devices_that_no_container_could_open_are_refused_before_it_is_made(node: Path, given: Given) -> None:
    mode = node / "sys/module/ib_core/parameters/netns_mode"
    mode.parent.mkdir(parents=True)
    mode.write_text("N\n")
    with pytest.raises(RdmaProblem, match=r"mode exclusive, in which no container .* set netns shared"):
        paths(node, given)
    assert paths(node, Given("0000:01:10.2", "eth3")) == [], "it has no RDMA device"
    mode.write_text("Y\n")
    assert paths(node, given)


@pytest.mark.parametrize(
    ("kind", "mac", "lasting"),
    [("0", MAC, MAC), ("3", MAC, MAC), ("1", MAC, ""), ("0", ":".join(["00"] * 20), ""), ("0", "", "")],
)
def test_an_address_that_does_not_last_is_not_insisted_on(
    node: Path, kind: str, mac: str, lasting: str
) -> None:
    (node / "sys/class/net/ens11/addr_assign_type").write_text(f"{kind}\n")
    assert lasting_mac(Given("0000:a1:00.1", "ens11", mac), str(node / "sys")) == lasting
    assert lasting_mac(Given("0000:a1:00.1", "", mac), str(node / "sys")) is None


def test_a_function_that_was_taken_away_under_its_container_is_predicted_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = "ffff:1f:10.0"
    monkeypatch.setattr(container_functions, "held", lambda socket, found, network: gone)
    had = {"ibnet": {"function": gone, "devices": ["/dev/infiniband/uverbs2"], "mac": MAC}}
    functions = Functions(DockerAPI("/nowhere.sock"), "/nowhere.sock", [("ibnet", "192.169.16.101")])
    assert functions.settings({}, had, check=True) == had
