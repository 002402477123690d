"""The desired users of the engine, images and SR-IOV plugin of a node."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import desired

from tests.unit.plugins.desired_states import digest, variables

ARCHIVE = {"name": "a:1", "source": "archive", "path": "a.tar"}
PULLED = {"name": "b:1", "source": "registry"}
ENTRY = PlanEntry("n1", vf_mac="02:00:00:00:00:01")


def made(role: str, entry: PlanEntry = ENTRY, **given: Any) -> dict[str, Any]:
    return desired(role, variables(given), entry)


def test_users_of_the_engine() -> None:
    assert made("docker_engine", docker_engine_users="a,b") == {
        "socket": "",
        "users": ["a", "b"],
        "packages": [],
    }


def test_images_of_a_list_have_their_settings() -> None:
    part = made("images", images_list=[ARCHIVE, {**PULLED, "pull": "always"}], images_cache_dir="/c")
    assert part["images"] == [ARCHIVE, {**PULLED, "pull": "always"}]
    assert (part["plugin"], part["cache_dir"]) == ([], "/c")


def test_without_a_list_an_accelerator_has_its_own() -> None:
    assert [one["source"] for one in made("images", rdm_accelerator="rocm")["images"]] == ["registry"]
    assert made("images", rdm_accelerator="cpu")["images"] == made("images")["images"] == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, []),
        ({"sriov_plugin": "upstream"}, [{"name": "rdma/sriov-plugin:latest", "source": "registry"}]),
        ({"sriov_image": "mine:1"}, [{"name": "mine:1", "source": "registry"}]),
        ({"sriov_image": "a:1"}, []),  # the list brings it
    ],
)
def test_the_plugins_image_comes_too(given: dict[str, Any], expected: list[dict[str, str]]) -> None:
    part = made("images", sriov_enabled=True, images_list=[ARCHIVE], **given)
    assert part["plugin"] == expected
    assert made("images", images_list=[ARCHIVE], **given)["plugin"] == []


def test_an_archive_that_changed_on_the_controller_is_another_state() -> None:
    now = ENTRY._replace(archives=(("a.tar", 1, 1),))
    given = {"images_list": [ARCHIVE]}
    assert digest("images", variables(given), now) != digest("images", variables(given), ENTRY)


def test_our_plugin_in_a_container_needs_only_the_nodes_links() -> None:
    container = made("sriov", sriov_image="py:3", sriov_env={"A": 1}, container_userns_mode="host")[
        "container"
    ]
    assert container["image"] == "py:3"
    assert container["command"][:2] == ["python3", "/usr/local/lib/rdm/rdm-sriov"]
    assert (container["privileged"], container["read_only"]) == (False, True)
    assert (container["capabilities"], container["env"]) == (["NET_ADMIN"], {"A": "1"})
    assert container["volumes"] == [
        "/usr/local/lib/rdm:/usr/local/lib/rdm:ro",
        "/run/docker/plugins:/run/docker/plugins",
        "/var/lib/rdm-sriov:/var/lib/rdm-sriov",
    ]
    assert container["userns_mode"] == "host"


def test_upstreams_plugin_has_the_users_settings() -> None:
    part = made("sriov", sriov_plugin="upstream", sriov_capabilities=["X"], sriov_userns_mode="")
    assert part["program_digest"] == ""
    container = part["container"]
    assert (container["image"], container["privileged"]) == ("rdma/sriov-plugin:latest", True)
    assert (container["capabilities"], container["command"]) == (["X"], [])


def test_another_program_is_another_state() -> None:
    part = made("sriov", sriov_vfs=2)
    assert part["program_digest"].startswith("sha256:")
    assert part["boot_program"].startswith("sha256:")
    assert made("sriov")["boot_program"] == ""


def test_vfs_lie_on_the_interfaces_of_the_networks_and_have_the_plans_addresses() -> None:
    given: dict[str, Any] = {
        "network_parent": "ib0, ib1",
        "sriov_vfs": "2",
        "sriov_firmware": True,
        "sriov_vf_vlan": "0",
    }
    part = made("sriov", **given)
    vfs = part["vfs"]
    assert (vfs["pfs"], vfs["number"], part["firmware_vfs"]) == (["ib0", "ib1"], 2, 8)
    assert (vfs["first_mac"], vfs["vlan"], vfs["trust"]) == ("02:00:00:00:00:01", 0, None)
    assert made("sriov", **given, sriov_vf_first_mac="")["vfs"]["first_mac"] == ""


@pytest.mark.parametrize(
    ("given", "enabled"),
    [({}, True), ({"network_driver": "macvlan"}, False), ({"sriov_enabled": "no"}, False)],
)
def test_plugin_serves_its_own_driver_by_default(given: dict[str, Any], enabled: bool) -> None:
    assert made("sriov", **given)["enabled"] is enabled
