"""Answers of Podman 4.3.1 become Docker's, and requests become Podman's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.container.request import (
    difference,
    request,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker import engine_facts, podman

CONTAINER = "/containers/rdm/json"


def wanted(**changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        **{"cluster": "demo", "image": "train:1", "command": ["sleep"], "hostname": "n1", "network": "ibnet"},
        **{"my_ip": "192.169.16.100", "env": {}, "volumes": [], "devices": [], "device_requests": []},
        **{"groups": [], "ulimits": ["memlock:-1:-1"], "capabilities": [], "security_opts": []},
        **{"ipc_mode": "host", "userns_mode": "", "shm_size": "", "stop_timeout": 10, "reads": ""},
        **{"rails": {}, "vfs": {}, "restart_policy": "unless-stopped"},
    }
    return {**settings, **changes}


def shown(body: dict[str, Any], address: str = "") -> dict[str, Any]:
    """Return what Podman shows of such a container: little of the request."""
    host = body["HostConfig"]
    policy = {"unless-stopped": "always"}.get(host["RestartPolicy"]["Name"], host["RestartPolicy"]["Name"])
    ends = {
        name: {"IPAMConfig": None, "NetworkID": name, "IPAddress": address}
        for name in body["NetworkingConfig"]["EndpointsConfig"]
    }
    return {
        "Id": "1",
        "Image": "sha256:1",
        "Config": {"Labels": body["Labels"], "Env": body["Env"]},
        "HostConfig": {"RestartPolicy": {"Name": policy}, "PidsLimit": host["PidsLimit"]},
        "NetworkSettings": {"Networks": ends},
    }


def found(body: dict[str, Any], address: str = "") -> Any:
    return podman.from_podman(CONTAINER, shown(body, address), list)


@pytest.mark.parametrize("policy", ["unless-stopped", "always", "no"])
@pytest.mark.parametrize("address", ["192.169.16.100", ""])
def test_a_container_that_is_as_it_should_be_differs_in_nothing(policy: str, address: str) -> None:
    """Also a stopped container, whose address Podman does not show."""
    has = found(podman.to_podman("/containers/create", request(wanted(restart_policy=policy))), address)
    differs = difference(wanted(restart_policy=policy), has, "sha256:1", {"ibnet": "f00d"})
    assert (differs.before, differs.recreate_needed, differs.policy) == ({}, False, False)


def test_changed_settings_are_found() -> None:
    has = found(podman.to_podman("/containers/create", request(wanted())), "192.169.16.7")
    differs = difference(wanted(restart_policy="always"), has)
    assert differs.before == {"address": "192.169.16.7", "restart_policy": "unless-stopped"}


def test_podman_container_has_dockers_defaults() -> None:
    host = podman.to_podman("/containers/create", request(wanted(capabilities=["IPC_LOCK"])))["HostConfig"]
    assert host["CapAdd"] == ["IPC_LOCK", "AUDIT_WRITE", "MKNOD", "NET_RAW"]
    assert host["PidsLimit"] == -1, "Podman's own limit is 2048 processes"


def test_other_requests_and_answers_pass_through() -> None:
    body = {"AttachStdout": True}
    assert podman.to_podman("/containers/rdm/exec", body) is body
    assert podman.from_podman("/exec/1/json", body, list) is body


def test_foreign_container_is_not_translated() -> None:
    body = podman.to_podman("/containers/create", request(wanted()))
    has = podman.from_podman(CONTAINER, shown({**body, "Labels": None}, "10.0.0.2"), list)
    assert has["HostConfig"]["RestartPolicy"]["Name"] == "always"
    assert has["NetworkSettings"]["Networks"]["ibnet"]["IPAMConfig"] == {"IPv4Address": "10.0.0.2"}


def test_the_list_of_containers_has_the_address_of_one_that_has_stopped() -> None:
    body = podman.to_podman("/containers/create", request(wanted()))
    one = {
        **{"Id": "1", "Names": ["/rdm"], "Image": "localhost/train:1", "Labels": body["Labels"]},
        "NetworkSettings": {
            "Networks": {"ibnet": {"IPAMConfig": None, "IPAddress": "", "NetworkID": "ibnet"}}
        },
    }
    [listed] = engine_facts.containers(podman.from_podman("/containers/json", [one], list))
    assert listed["networks"] == {"ibnet": "192.169.16.100"}
    assert listed["image"] == "train:1"


def test_images_have_docker_names() -> None:
    tags = ["localhost/train:1", "docker.io/library/debian:12", "docker.io/rocm/dev:6", "quay.io/a/b:1"]
    has = podman.from_podman("/images/json", [{"Id": "sha256:1", "RepoTags": tags}, {"Id": "2"}], list)
    assert has[0]["RepoTags"] == ["train:1", "debian:12", "rocm/dev:6", "quay.io/a/b:1"]
    assert has[1]["RepoTags"] == []


def test_a_network_has_the_interface_below_it() -> None:
    listed = [
        {"id": "1", "driver": "macvlan", "network_interface": "ib0"},
        {"id": "2", "driver": "bridge", "network_interface": "podman0"},
    ]
    has = podman.from_podman("/networks", [{"Id": "1", "Options": None}, {"Id": "2"}], lambda: listed)
    assert [one["Options"] for one in has] == [{"parent": "ib0"}, {}]
    assert podman.from_podman("/networks/ibnet", {"Id": "1"}, lambda: listed)["Options"] == {"parent": "ib0"}


def test_gpus_come_by_cdi_and_pools_are_podmans() -> None:
    info = podman.from_podman("/info", {"Runtimes": {"nvidia": {}, "crun": {}}}, list)
    assert engine_facts.default_address_pools(info, "")[0] == "10.89.0.0/16"
    assert "runtime" not in engine_facts.nvidia(info)
    assert info["CDISpecDirs"] == ["/etc/cdi", "/var/run/cdi"]


def test_restarts_at_boot(tmp_path: Path) -> None:
    assert not podman.restarts_at_boot(str(tmp_path))
    unit = tmp_path / "default.target.wants" / "podman-restart.service"
    unit.parent.mkdir()
    unit.symlink_to("/lib/systemd/system/podman-restart.service")
    assert podman.restarts_at_boot(str(tmp_path))


def test_server_of_a_socket_is_identified() -> None:
    assert podman.serving("/run/podman/podman.sock") == ("podman", "systemd")
    assert podman.serving("/var/run/docker.sock") == ("dockerd",)
