"""What the engine is asked for, and when a container is another one than it should be."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.engine.container_request import (
    difference,
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
    """The container as the engine shows it after the request."""
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


def test_texts_become_what_the_engine_takes(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_was_asked_for_is_no_difference() -> None:
    assert difference(WANTED, made(WANTED), "sha256:1", "net1")[2:] == (False, False, [])
    # Unset limits are 0, empty or missing, as the engine's version will have it.
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
    found = difference({**WANTED, **change}, made(WANTED), "sha256:1", "net1")
    assert found.anew
    assert named in found.after
    assert set(found.before) == set(found.after)


def test_an_image_and_a_network_that_cannot_be_looked_up_make_no_difference() -> None:
    assert not difference(WANTED, made(WANTED), "", "").anew
    assert difference(WANTED, made(WANTED), "sha256:2", "net1").anew
    assert difference(WANTED, made(WANTED), "sha256:1", "net2").anew


def test_labels_have_no_value_of_the_environment() -> None:
    assert "hush" not in str(request(WANTED)["Labels"])
    assert "TOKEN" in str(request(WANTED)["Labels"])


@pytest.mark.parametrize("label", ["", "no json", "[]", '{"env": 1}'])
def test_one_that_does_not_say_how_it_was_made_is_made_anew(label: str) -> None:
    found = made(WANTED)
    found["Config"]["Labels"] = {"rdm.provision.settings": label}
    assert difference(WANTED, found).anew
