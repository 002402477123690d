"""The RDMA device of each function, for every way in which drivers show it, and when two of them differ."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.modules import rdma_devices
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.sysfs.build import build
from tests.unit.plugins.modules.running import Failed, run_module

RXE = "sys/class/infiniband/rxe0"


def find(tree: Path, name: str, *, must: bool | None = None) -> dict[str, object]:
    return rdma_devices.find(name, must, str(tree / "sys"), str(tree / "dev"))


def paths(*names: str) -> list[str]:
    return [f"/dev/infiniband/{name}" for name in (*names, "rdma_cm")]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return build("rdma", tmp_path)


@pytest.mark.parametrize(
    ("names", "device", "files", "ways"),
    [
        (("ib0", "0000:41:00.0"), "mlx5_0", ("uverbs0", "umad0", "issm0"), ("device", "guid")),
        (("ib1", "0000:41:00.1"), "mlx5_1", ("uverbs1", "umad1", "issm1"), ("device", "guid")),
        (("0000:41:00.2",), "mlx5_2", ("uverbs2", "umad2", "issm2"), ("device",)),
        (("ens10", "0000:A1:00.0"), "mlx5_3", ("uverbs3", "umad3"), ("device", "gid_attrs")),
        (("ens11", "0000:a1:00.1"), "mlx5_4", ("uverbs4", "umad4"), ("device", "gid_attrs")),
        (("0000:a1:00.2",), "mlx5_5", ("uverbs5", "umad5"), ("device",)),
        (
            ("ib2", "ib3", "0000:05:00.0"),
            "mlx4_0",
            ("uverbs6", "umad6", "umad7", "issm6", "issm7"),
            ("device", "guid"),
        ),
        (("eth2", "0000:01:10.0"), "rxe0", ("uverbs8", "umad8"), ("gid_attrs", "parent")),
    ],
)
def test_every_kind_of_function_has_its_devices_and_no_others(
    node: Path, names: tuple[str, ...], device: str, files: tuple[str, ...], ways: tuple[str, ...]
) -> None:
    for name in names:
        found = find(node, name)
        assert (found["device"], found["paths"]) == (device, paths(*files))
        assert found["ways"] == {way: [device] for way in ways}


def test_a_container_may_call_its_interface_as_we_call_another(node: Path) -> None:
    found = find(node, "eth0")
    assert (found["device"], found["pci"], found["interfaces"]) == ("", "", ["eth0"])


def test_a_card_without_rdma_has_none_and_need_not_have_any(node: Path) -> None:
    assert find(node, "eth3") == {
        "device": "",
        "paths": [],
        "ways": {},
        "pci": "0000:01:10.2",
        "interfaces": ["eth3"],
    }
    with pytest.raises(NodeError, match="must have one, since it is required"):
        find(node, "eth3", must=True)


@pytest.mark.parametrize("name", ["ib1", "0000:41:00.1", "0000:a1:00.2"])
def test_one_whose_physical_function_has_a_device_must_have_one(node: Path, name: str) -> None:
    number = 5 if "a1" in name else 1
    (node / f"sys/class/infiniband/mlx5_{number}/device").unlink()
    for guid in node.glob(f"sys/class/infiniband/mlx5_{number}/ports/1/gids/0"):
        guid.unlink()
    (node / f"sys/class/infiniband/mlx5_{number}/node_guid").write_text("0000:0000:0000:0000\n")
    with pytest.raises(NodeError, match=r"must have one, since .*none of those of the node \(mlx4_0"):
        find(node, name)
    assert find(node, name, must=False)["device"] == ""


def test_duplicate_guid_is_reported_with_both_functions(node: Path) -> None:
    (node / "sys/class/infiniband/mlx5_2/ports/1/gids/0").write_text(
        "fe80:0000:0000:0000:0022:3344:7766:5501\n"
    )
    with pytest.raises(NodeError) as caught:
        find(node, "ib1")
    assert "by its PCI function mlx5_1; by the GUID in its address mlx5_1, mlx5_2." in str(caught.value)
    # Without the interface there is one source, and nothing to compare.
    assert find(node, "0000:41:00.2")["device"] == "mlx5_2"


def test_a_guid_that_belongs_to_another_is_reported_with_both(node: Path) -> None:
    address = node / "sys/class/net/ib1/address"
    address.write_text("00:00:08:41:fe:80:00:00:00:00:00:00:b8:ce:f6:03:00:a1:b2:c0\n")
    with pytest.raises(NodeError) as caught:
        find(node, "0000:41:00.1")
    assert "ib1 (0000:41:00.1) has more than one" in str(caught.value)
    assert "by its PCI function mlx5_1; by the GUID in its address mlx5_0." in str(caught.value)


def test_unset_guids_are_ignored(node: Path) -> None:
    (node / "sys/class/net/ib1/address").write_text(":".join(["00"] * 20) + "\n")
    for number in (1, 2):
        (node / f"sys/class/infiniband/mlx5_{number}/node_guid").write_text("0000:0000:0000:0000\n")
        (node / f"sys/class/infiniband/mlx5_{number}/ports/1/gids/0").write_text("fe80" + ":0000" * 7 + "\n")
    assert find(node, "ib1")["ways"] == {"device": ["mlx5_1"]}


def test_soft_roce_on_top_of_a_vf_that_has_a_device_is_reported_with_both(node: Path) -> None:
    (node / RXE / "parent").write_text("ens11\n")
    (node / RXE / "ports/1/gid_attrs/ndevs/0").write_text("ens11\n")
    with pytest.raises(NodeError) as caught:
        find(node, "ens11")
    text = str(caught.value)
    assert (
        "by its PCI function mlx5_4; by the interfaces of their GIDs mlx5_4, rxe0; by the interface" in text
    )


def test_soft_roce_with_contradicting_parents_is_reported_with_both(node: Path) -> None:
    (node / "sys/class/infiniband_verbs/uverbs9").mkdir()
    (node / "sys/class/infiniband/rxe1").mkdir()
    (node / "sys/class/infiniband/rxe1/parent").write_text("eth2\n")
    (node / RXE / "parent").write_text("eth3\n")
    with pytest.raises(NodeError, match=r"GIDs rxe0; by the interface that they were made on rxe1\."):
        find(node, "eth2")


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        (
            "sys/class/infiniband_verbs/uverbs1/ibdev",
            "mlx5_1 cannot be used from programs: load .* ib_uverbs",
        ),
        (
            "dev/infiniband/umad1",
            "has umad1 for the RDMA device mlx5_1, and there is no /dev/infiniband/umad1",
        ),
    ],
)
def test_a_character_device_that_is_missing_is_never_left_out_silently(
    node: Path, gone: str, message: str
) -> None:
    (node / gone).unlink()
    with pytest.raises(NodeError, match=message):
        find(node, "ib1")


def test_without_rdma_cm_the_rest_is_of_use(node: Path) -> None:
    (node / "dev/infiniband/rdma_cm").unlink()
    assert find(node, "ens11")["paths"] == paths("uverbs4", "umad4")[:-1]


@pytest.mark.parametrize("name", ["nowhere0", "0000:99:00.0", "../ib0", ""])
def test_what_is_missing_is_named(node: Path, name: str) -> None:
    with pytest.raises(NodeError, match="there is no"):
        find(node, name)


def test_rdma_module_reports_without_changing_anything() -> None:
    for check in (True, False):
        found = run_module(rdma_devices, {"function": "lo"}, check=check)
        assert (found["changed"], found["device"], found["interfaces"]) == (False, "", ["lo"])
    with pytest.raises(Failed, match="there is no network interface nowhere0 on this node"):
        run_module(rdma_devices, {"function": "nowhere0"})


def card(tree: Path, order: list[int], away: set[int]) -> None:
    """Create a PF and VFs whose RDMA devices have another order than the functions."""
    for index, number in enumerate(order):
        pci = tree / f"sys/bus/pci/devices/0000:41:00.{index}"
        pci.mkdir(parents=True)
        device = tree / f"sys/class/infiniband/mlx5_{number}"
        (device / "ports/1/gids").mkdir(parents=True)
        (device / "device").symlink_to(pci)
        guid = f"0022:3344:0000:00{index:02x}"
        (device / "node_guid").write_text(guid)
        (device / "ports/1/gids/0").write_text(f"fe80:0000:0000:0000:{guid}")
        for kind, name in (("verbs", "uverbs"), ("mad", "umad")):
            (tree / f"sys/class/infiniband_{kind}/{name}{number}").mkdir(parents=True)
            (tree / f"sys/class/infiniband_{kind}/{name}{number}/ibdev").write_text(f"mlx5_{number}\n")
            (tree / "dev/infiniband").mkdir(parents=True, exist_ok=True)
            (tree / f"dev/infiniband/{name}{number}").touch()
        if index:
            (pci / "physfn").symlink_to(tree / "sys/bus/pci/devices/0000:41:00.0")
        if index not in away:
            (pci / f"net/ib{index}").mkdir(parents=True)
            net = tree / f"sys/class/net/ib{index}"
            net.mkdir(parents=True)
            (net / "device").symlink_to(pci)
            (net / "type").write_text("32\n")
            flat = guid.replace(":", "")
            last = ":".join(flat[at : at + 2] for at in range(0, 16, 2))
            (net / "address").write_text(f"00:00:10:29:fe:80:00:00:00:00:00:00:{last}\n")


ORDERS = st.integers(1, 7).flatmap(lambda count: st.permutations(range(count + 1)))


@settings(max_examples=40, deadline=None)
@given(order=ORDERS, data=st.data())
def test_no_two_functions_share_a_device_in_any_order(order: list[int], data: st.DataObject) -> None:
    away = data.draw(st.sets(st.integers(1, len(order) - 1)))
    with tempfile.TemporaryDirectory() as directory:
        card(Path(directory), order, away)
        found = [find(Path(directory), f"0000:41:00.{index}") for index in range(len(order))]
    assert [one["device"] for one in found] == [f"mlx5_{number}" for number in order]
    given_out = [path for one in found for path in one["paths"]]  # type: ignore[attr-defined]
    assert len(given_out) == len(set(given_out)) == 2 * len(order)


@settings(max_examples=40, deadline=None)
@given(order=ORDERS, data=st.data())
def test_wrong_guid_never_gives_a_function_anothers_device(order: list[int], data: st.DataObject) -> None:
    """A device with another function's GUID is found by its PCI function, or the mismatch is reported."""
    number = data.draw(st.integers(0, len(order) - 1))
    other = data.draw(st.integers(0, len(order)))  # the last number is no function's
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        card(tree, order, set())
        gid = tree / f"sys/class/infiniband/mlx5_{number}/ports/1/gids/0"
        gid.write_text(f"fe80:0000:0000:0000:0022:3344:0000:00{other:02x}")
        for index, mine in enumerate(order):
            if index == other and mine != number:
                with pytest.raises(NodeError, match=f"(?=.*mlx5_{mine})(?=.*mlx5_{number})"):
                    find(tree, f"ib{index}")
            else:
                assert find(tree, f"ib{index}")["device"] == f"mlx5_{mine}"
