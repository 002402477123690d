"""The request to the engine, and when a container differs from the desired one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.container.request import (
    difference,
    endpoint,
    request,
)

WANTED: dict[str, Any] = {
    "cluster": "c",
    "image": "i:1",
    "command": ["sleep", "infinity"],
    "hostname": "n1",
    "network": "ibnet",
    "my_ip": "10.0.0.100",
    "env": {"MY_IP": "10.0.0.100", "TOKEN": "hush"},
    "volumes": ["/data:/data:ro", "cache:/cache", "~/x:/x"],
    "devices": ["/dev/a", "/dev/a:/dev/b", "/dev/a:r", "/dev/a:/dev/b:rw"],
    "device_requests": [{"driver": "nvidia", "count": -1, "capabilities": [["gpu"]]}],
    "groups": [],
    "ulimits": ["memlock:-1:-1", "nofile:9"],
    "capabilities": [],
    "security_opts": [],
    "ipc_mode": "host",
    "shm_size": "",
    "userns_mode": "",
    "restart_policy": "no",
    "stop_timeout": 10,
    "reads": "",
}


def made(wanted: dict[str, Any], **host: Any) -> dict[str, Any]:
    """Return the container as the engine shows it after the request."""
    body = request(wanted)
    ends = {
        name: {**end, "NetworkID": "net1"}
        for name, end in body["NetworkingConfig"]["EndpointsConfig"].items()
    }
    return {
        "Image": "sha256:1",
        "Config": {**body, "Env": [*body["Env"], "PATH=/bin"]},
        "HostConfig": {**body["HostConfig"], **host},
        "NetworkSettings": {"Networks": ends},
    }


def test_options_as_text_become_engine_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ops")
    host = request(WANTED)["HostConfig"]
    assert host["Binds"] == ["/data:/data:ro", "cache:/cache", "/home/ops/x:/x"]
    devices = [tuple(device.values()) for device in host["Devices"]]
    assert devices == [
        ("/dev/a", "/dev/a", "rwm"),
        ("/dev/a", "/dev/b", "rwm"),
        ("/dev/a", "/dev/a", "r"),
        ("/dev/a", "/dev/b", "rw"),
    ]
    assert [(one["Soft"], one["Hard"]) for one in host["Ulimits"]] == [(-1, -1), (9, 9)]
    assert host["DeviceRequests"][0]["Count"] == -1
    assert "Privileged" not in host


def test_each_rail_answers_for_its_own_addresses_only() -> None:
    railed = {**WANTED, "rails": {"ibnet-1": "10.0.1.100"}}
    body = made(railed)
    assert body["HostConfig"]["Sysctls"]["net.ipv4.conf.all.arp_ignore"] == "1"
    body["NetworkSettings"]["Networks"]["ibnet-1"] = {"IPAMConfig": {"IPv4Address": "10.0.1.100"}}
    assert difference(railed, body).before == {}
    # As an earlier version made it.
    body["HostConfig"]["Sysctls"] = None
    found = difference(railed, body)
    assert (found.recreate_needed, list(found.before)) == (True, ["sysctls"])


def test_requested_settings_are_no_difference() -> None:
    assert difference(WANTED, made(WANTED), "sha256:1", {"ibnet": "net1"})[2:] == (False, False, [])
    # Unset limits are 0, empty or missing, depending on the engine's version.
    unset = made(WANTED, Memory=0, PidsLimit=None, CpusetCpus="")
    assert difference(WANTED, unset).before == {}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"env": {**WANTED["env"], "TOKEN": "other"}}, "env"),
        ({"env": {"MY_IP": "10.0.0.100"}}, "env"),
        ({"image": "i:2"}, "image"),
        ({"network": "other"}, "on the network"),
        ({"my_ip": "10.0.0.101"}, "address"),
    ],
)
def test_another_setting_makes_another_container(change: dict[str, Any], named: str) -> None:
    found = difference({**WANTED, **change}, made(WANTED), "sha256:1", {"ibnet": "net1"})
    assert found.recreate_needed
    assert named in found.after
    assert set(found.before) == set(found.after)


def test_an_image_and_a_network_that_cannot_be_looked_up_make_no_difference() -> None:
    assert not difference(WANTED, made(WANTED), "", {}).recreate_needed
    assert difference(WANTED, made(WANTED), "sha256:2", {"ibnet": "net1"}).recreate_needed
    assert difference(WANTED, made(WANTED), "sha256:1", {"ibnet": "net2"}).recreate_needed


def test_labels_have_no_value_of_the_environment() -> None:
    assert "hush" not in str(request(WANTED)["Labels"])
    assert "TOKEN" in str(request(WANTED)["Labels"])


@pytest.mark.parametrize("label", ["", "no json", "[]", '{"env": 1}'])
def test_container_without_a_record_of_its_settings_is_recreated(label: str) -> None:
    found = made(WANTED)
    found["Config"]["Labels"] = {"rdm.provision.settings": label}
    assert difference(WANTED, found).recreate_needed


MAC = "02:2d:ea:07:26:b5"
WITH_VF = {
    **WANTED,
    "vfs": {"ibnet": {"mac": MAC, "devices": ["/dev/infiniband/uverbs3", "/dev/infiniband/rdma_cm"]}},
}
TWO_RAILS = {
    **WANTED,
    "rails": {"ibnet1": "10.1.0.100"},
    "vfs": {
        "ibnet": {"devices": ["/dev/infiniband/uverbs3", "/dev/infiniband/rdma_cm"]},
        "ibnet1": {"mac": MAC, "devices": ["/dev/infiniband/uverbs4", "/dev/infiniband/rdma_cm"]},
    },
}


def test_a_container_gets_the_devices_of_its_vfs_each_once_and_may_lock_memory() -> None:
    host = request(TWO_RAILS)["HostConfig"]
    paths = [one["PathInContainer"] for one in host["Devices"][len(WANTED["devices"]) :]]
    assert paths == [f"/dev/infiniband/{name}" for name in ("uverbs3", "rdma_cm", "uverbs4")]
    assert host["CapAdd"] == ["IPC_LOCK"]
    assert request({**TWO_RAILS, "capabilities": ["IPC_LOCK"]})["HostConfig"]["CapAdd"] == ["IPC_LOCK"]
    assert request(WANTED)["HostConfig"]["CapAdd"] == []


@pytest.mark.parametrize(("api", "of_endpoint"), [((1, 41), False), ((1, 43), False), ((1, 44), True)])
def test_a_hardware_address_is_the_endpoints_where_the_engine_knows_that(
    api: tuple[int, int], of_endpoint: bool
) -> None:
    body = request(WITH_VF, api)
    end = body["NetworkingConfig"]["EndpointsConfig"]["ibnet"]
    assert (end.get("MacAddress"), body.get("MacAddress")) == ((MAC, None) if of_endpoint else (None, MAC))
    assert "MacAddress" not in request(WANTED, api)
    further = endpoint(TWO_RAILS, "ibnet1", api)
    assert further == {
        "IPAMConfig": {"IPv4Address": "10.1.0.100"},
        **({"MacAddress": MAC} if of_endpoint else {}),
    }


def test_a_container_requests_at_every_start_the_vf_whose_devices_it_has() -> None:
    on_all = {**WANTED, "vfs": {"ibnet": {"vf": "0000:41:00.2", "devices": ["/dev/x"]}}}
    end = request(on_all)["NetworkingConfig"]["EndpointsConfig"]["ibnet"]
    # A plugin of a release before 0.6.0 knows the latter.
    assert end["DriverOpts"] == dict.fromkeys(("rdm.provision.vf", "rdm.provision.function"), "0000:41:00.2")
    assert "DriverOpts" not in request(WITH_VF)["NetworkingConfig"]["EndpointsConfig"]["ibnet"]


def test_labels_of_a_container_without_rails_and_vfs_are_unchanged() -> None:
    label = request({**WANTED, "rails": {}, "vfs": {}})["Labels"]["rdm.provision.settings"]
    assert label == request(WANTED)["Labels"]["rdm.provision.settings"]
    assert not {"rails", "vfs"} & set(json.loads(label))
    assert not difference({**WANTED, "rails": {}, "vfs": {}}, made(WANTED)).recreate_needed


def test_other_devices_of_its_vf_make_another_container() -> None:
    other = {**WANTED, "vfs": {"ibnet": {"mac": MAC, "devices": ["/dev/infiniband/uverbs5"]}}}
    assert set(difference(other, made(WITH_VF)).after) == {"vfs"}
    assert not difference(WITH_VF, made(WITH_VF)).recreate_needed
    assert difference(WANTED, made(WITH_VF)).recreate_needed


def test_container_of_the_previous_release_is_kept() -> None:
    wanted = {**WITH_VF, "vfs": {"ibnet": {"vf": "0000:41:00.2", **WITH_VF["vfs"]["ibnet"]}}}
    found = made(wanted)
    labels = found["Config"]["Labels"]
    former = {
        name: text.replace('"vfs"', '"functions"').replace('"vf"', '"function"')
        for name, text in labels.items()
    }
    assert former != labels
    found["Config"]["Labels"] = former
    assert not difference(wanted, found).recreate_needed


def test_each_rail_is_compared() -> None:
    found = made(TWO_RAILS)
    assert difference(TWO_RAILS, found).after == {"on the network ibnet1": True}
    end = {"IPAMConfig": {"IPv4Address": "10.1.0.100"}, "NetworkID": "net2"}
    found["NetworkSettings"]["Networks"]["ibnet1"] = end
    assert difference(TWO_RAILS, found, networks={"ibnet1": "net2"})[2:] == (False, False, [])
    assert difference(TWO_RAILS, found, networks={"ibnet1": "net9"}).after == {"network ID ibnet1": "net9"}
    end["IPAMConfig"] = {"IPv4Address": "10.1.0.9"}
    assert difference(TWO_RAILS, found).before == {"address ibnet1": "10.1.0.9"}
    found["NetworkSettings"]["Networks"]["other"] = {}
    assert difference(TWO_RAILS, found).extra_networks == ["other"]
