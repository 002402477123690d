"""The roles container and sriov: a container that did not start, and what one may do and mount."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engine import Engine, net
from tests.integration.plays import HOST, Played, run_plays
from trainer.tests.waiting import wait_until

NET = net(0)
SUBNET = f"{NET}.0/24"


@pytest.fixture
def bare(engine: Engine) -> Iterator[Engine]:
    """An engine with a network for the container; both are empty again afterwards."""
    engine.api.post("/networks/create", {"Name": "fabric", "IPAM": {"Config": [{"Subnet": SUBNET}]}})
    yield engine
    engine.clear()


def play(
    role: str,
    directory: Path,
    engine: str,
    *secured: str,
    several: Sequence[dict[str, Any]] = ({},),
    **variables: Any,
) -> Played:
    """Run a role's present.yml, after a preflight that has seen no container and a network.

    Args:
        role: its name.
        directory: for all files.
        engine: path of its socket.
        secured: what the engine names itself that secures it, such as selinux.
        several: the variables of each play.
        variables: of all plays.
    """
    task = {
        "name": "Run the role",
        "ansible.builtin.include_role": {"name": f"rdm.provision.{role}", "tasks_from": "present"},
    }
    return run_plays(
        directory,
        [{"tasks": [task], "vars": {"container_my_ip": f"{NET}.9", **own}} for own in several],
        docker_host=f"unix://{engine}",
        preflight_facts={"node": {"docker": {"containers": [], "security_options": secured}}},
        preflight_plan={"nodes": {HOST: {"network_present": True, "container": {"shm_size": "2G"}}}},
        container_ssh_key_dir=str(directory / "keys"),
        container_config_dir=str(directory / "config"),
        container_job_directory=str(directory / "jobs"),
        container_master_addr=f"{NET}.9",
        container_address_map=f"node1 {NET}.9\n",
        container_network="fabric",
        container_ulimits=[],
        **variables,
    )


def test_training_container_that_never_started_fails_each_run(
    bare: Engine, busybox_image: str, tmp_path: Path
) -> None:
    for _ in range(2):
        played = play(
            "container",
            tmp_path,
            bare.socket,
            container_image=busybox_image,
            container_command=["sh", "-c", "echo no such device; exit 3"],
        )
        assert played.status != 0
        assert "container rdm ended with status 3" in played.output, played.output
        wait_until("it restarts", lambda: bare.api.get("/containers/rdm/json")["State"]["Restarting"])


def test_training_container_capabilities(bare: Engine, busybox_image: str, tmp_path: Path) -> None:
    """By default, with new privileges, for debugging, and with the user's settings: four containers."""
    debug = {"container_debug": True}
    own = {**debug, "container_security_opts": ["no-new-privileges:false"]}
    cases: list[tuple[dict[str, Any], list[str], list[str]]] = [
        ({}, [], ["no-new-privileges"]),
        ({"container_no_new_privileges": False}, [], []),
        (debug, ["SYS_PTRACE"], ["no-new-privileges", "seccomp=unconfined"]),
        (own, ["SYS_PTRACE"], ["no-new-privileges:false", "seccomp=unconfined"]),
    ]
    played = play(
        "container",
        tmp_path,
        bare.socket,
        several=[
            {"container_name": f"c{number}", "container_my_ip": f"{NET}.{number + 10}", **given}
            for number, (given, _, _) in enumerate(cases)
        ],
        container_image=busybox_image,
        container_sshd=False,
        container_stop_timeout=0,
    )
    assert played.status == 0, played.output
    for number, (given, capabilities, options) in enumerate(cases):
        host = bare.api.get(f"/containers/c{number}/json")["HostConfig"]
        assert [name.replace("CAP_", "") for name in host["CapAdd"] or []] == capabilities, given
        # Docker adds this one to a container that shares the node's memory.
        assert [one for one in host["SecurityOpt"] or [] if one != "label=disable"] == options, given


def test_plugin_that_never_started_fails_each_run(bare: Engine, busybox_image: str, tmp_path: Path) -> None:
    spec = {"Image": busybox_image, "Cmd": ["sh", "-c", "echo no such device; exit 3"]}

    def restarting() -> bool:
        state: dict[str, Any] = bare.api.get("/containers/rdm-sriov-plugin/json")["State"]
        return bool(state["Restarting"])

    made = bare.api.post("/containers/create", spec)["Id"]
    bare.api.post("/commit", {"Cmd": spec["Cmd"]}, container=made, repo="rdm-test/plugin", tag="1")
    for _ in range(2):
        played = play(
            "sriov",
            tmp_path,
            bare.socket,
            sriov_plugin="upstream",
            sriov_image="rdm-test/plugin:1",
            sriov_allow_tag=True,
            sriov_volumes=[],
            sriov_privileged=False,
            sriov_socket=str(tmp_path / "plugin.sock"),
        )
        assert played.status != 0
        assert "container rdm-sriov-plugin ended with status 3" in played.output, played.output
        wait_until("it restarts", restarting)


def test_a_containers_own_shared_memory_is_as_large_as_the_plan_says(
    bare: Engine, busybox_image: str, tmp_path: Path
) -> None:
    """Docker's default of 64 MB is too small for NCCL. One size is the user's; the node's memory has none."""
    cases: list[tuple[dict[str, Any], int]] = [
        ({"container_ipc_mode": "private"}, 2 << 30),
        ({"container_shm_size": "3G"}, 3 << 30),
        ({}, 64 << 20),  # what the engine records if it does not apply
    ]
    played = play(
        "container",
        tmp_path,
        bare.socket,
        several=[
            {"container_name": f"c{number}", "container_my_ip": f"{NET}.{number + 10}", **given}
            for number, (given, _) in enumerate(cases)
        ],
        container_image=busybox_image,
        container_sshd=False,
        container_stop_timeout=0,
    )
    assert played.status == 0, played.output
    made = [bare.api.get(f"/containers/c{number}/json")["HostConfig"] for number in range(len(cases))]
    assert [host["ShmSize"] for host in made] == [size for _, size in cases]


def test_mounts_are_labelled_where_selinux_confines_the_container(
    bare: Engine, busybox_image: str, tmp_path: Path
) -> None:
    variables: dict[str, Any] = {
        "container_image": busybox_image,
        "container_sshd": False,
        "container_userns_mode": "host",
    }

    def mounts(*secured: str, **more: Any) -> list[str]:
        played = play("container", tmp_path, bare.socket, *secured, several=({}, {}), **variables, **more)
        assert played.status == 0, played.output
        assert played.changes[1] == 0, "the engine shows the options as they were given"
        host: dict[str, Any] = bare.api.get("/containers/rdm/json")["HostConfig"]
        assert host["UsernsMode"] == "host"
        return sorted(bind.partition(":")[2] for bind in host["Binds"])

    assert mounts("selinux", container_shm_size="64M") == ["/etc/rdm:ro,z", "/job:ro,z", "/jobs:z"]
    assert mounts("selinux") == ["/etc/rdm:ro", "/job:ro", "/jobs"], "memory of the node: not confined"
