"""The desired training container of a node, and the files that it reads."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import desired

from tests.unit.plugins.desired_states import digest, variables

SPEC = {
    "devices": ["/dev/kfd:/dev/kfd:rwm"],
    "groups": ["44"],
    "device_requests": [],
    "ulimits": ["memlock:65536:65536"],
    "capabilities": ["IPC_LOCK"],
    "shm_size": "2G",
}
PLANNED = PlanEntry(
    "n1",
    subnet="10.1.0.0/24",
    my_ip="10.1.0.101",
    master_addr="10.1.0.100",
    address_map="n1 10.1.0.101\n",
    image="training:1",
)
SEEN = PLANNED._replace(observed={"container": SPEC, "config_dir": "/etc/rdm"})


def made(entry: PlanEntry = SEEN, absent: bool = False, **given: Any) -> dict[str, Any]:
    return desired("container", variables(given), entry, absent=absent)


def paths(part: dict[str, Any], kind: str) -> list[str]:
    return [one["path"] for one in part[kind]]


def test_what_the_node_has_for_containers_and_the_plan_says() -> None:
    part = made()
    assert {name: part[name] for name in SPEC} == {**SPEC, "shm_size": ""}
    assert (part["image"], part["hostname"], part["network"]) == ("training:1", "n1", "ibnet")
    assert part["env"] == {"MY_IP": "10.1.0.101", "MASTER_ADDR": "10.1.0.100"}
    assert part["command"] == ["/bin/sh", "/etc/rdm/ssh/start"]
    assert part["security_opts"] == ["no-new-privileges"]
    assert (part["ipc_mode"], part["rdma"]) == ("host", True)


def test_users_settings_win() -> None:
    part = made(
        container_devices=[],
        container_ulimits="nofile:1:1",
        container_image="mine:2",
        container_env={"N": 1, "FLAG": True},
        container_command=["run"],
        container_capabilities=["SYS_NICE"],
    )
    assert (part["devices"], part["ulimits"], part["image"]) == ([], ["nofile:1:1"], "mine:2")
    assert {"N": "1", "FLAG": "True"}.items() <= part["env"].items()
    assert (part["command"], part["capabilities"]) == (["run"], ["SYS_NICE"])


def test_without_a_plan_the_variables_say_it_all() -> None:
    given: dict[str, Any] = {
        "container_my_ip": "10.2.0.1",
        "container_master_addr": "10.2.0.9",
        "container_address_map": "n1 10.2.0.1\n",
        "container_image": "mine:2",
    }
    part = made(PlanEntry("n1"), **given)
    assert (part["devices"], part["ulimits"], part["my_ip"]) == ([], ["memlock:-1:-1"], "10.2.0.1")
    for missing in given:
        rest: dict[str, Any] = {name: value for name, value in given.items() if name != missing}
        with pytest.raises(ValueError, match=f"set {missing}, or run the role preflight before"):
            made(PlanEntry("n1"), **rest)


def test_shared_memory_of_its_own() -> None:
    assert made(container_ipc_mode="private")["shm_size"] == "2G"
    own = made(container_shm_size="64G")
    assert (own["ipc_mode"], own["shm_size"]) == ("private", "64G")
    with pytest.raises(ValueError, match="no effect with container_ipc_mode host; set only one"):
        made(container_shm_size="64G", container_ipc_mode="host")


@pytest.mark.parametrize(
    ("given", "capabilities", "options"),
    [
        ({"container_no_new_privileges": "no"}, [], []),
        ({"container_debug": True}, ["SYS_PTRACE"], ["no-new-privileges", "seccomp=unconfined"]),
        (
            {
                "container_debug": True,
                "container_security_opts": ["no-new-privileges:false", "seccomp=/p.json"],
            },
            ["SYS_PTRACE"],
            ["no-new-privileges:false", "seccomp=/p.json"],
        ),
    ],
)
def test_container_capabilities(given: dict[str, Any], capabilities: list[str], options: list[str]) -> None:
    part = made(PLANNED, **given)
    assert (part["capabilities"], part["security_opts"]) == (capabilities, options)


def test_directories_are_labelled_where_selinux_confines_the_container() -> None:
    secured = SEEN._replace(engine={"security_options": ["selinux"]})
    own: dict[str, Any] = {"container_ipc_mode": "private"}
    labelled = ["/etc/rdm:/etc/rdm:ro,z", "/etc/rdm/job:/job:ro,z", "/var/lib/rdm/rdm:/jobs:z"]
    assert made(secured, **own)["volumes"] == labelled
    plain = ["/etc/rdm:/etc/rdm:ro", "/etc/rdm/job:/job:ro", "/var/lib/rdm/rdm:/jobs"]
    unconfined: list[dict[str, Any]] = [{}, {**own, "container_security_opts": ["label=disable"]}]
    for given in unconfined:
        assert made(secured, **given, container_volumes=["/a:/b"])["volumes"] == [*plain, "/a:/b"]


def test_it_has_an_address_on_each_rail() -> None:
    part = made(SEEN._replace(rails=("10.1.1.0/24", "10.1.2.0/24")))
    assert part["rails"] == {"ibnet-1": "10.1.1.101", "ibnet-2": "10.1.2.101"}
    assert part["env"]["MY_IP_2"] == "10.1.2.101"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("/run/x.sock", True)),
        ({"container_rdma": "all"}, ("/run/x.sock", False)),
        ({"container_devices": ["/dev/zero"]}, ("/run/x.sock", False)),
        ({"container_device_requests": []}, ("/run/x.sock", True)),
        ({"sriov_plugin": "upstream"}, ("", True)),
        ({"sriov_enabled": False}, ("", True)),
        ({"network_driver": "macvlan"}, ("", True)),
        ({"network_driver": "macvlan", "container_plugin_socket": "/y.sock"}, ("/y.sock", True)),
    ],
)
def test_vf_assignment_and_device_selection_of_a_container(
    given: dict[str, Any], expected: tuple[str, bool]
) -> None:
    variables = {"network_driver": "sriov", "sriov_socket": "/run/x.sock", **given}
    for planned in (PLANNED, SEEN):
        part = made(planned, **variables)
        assert (part["plugin_socket"], part["rdma"]) == expected
    here: dict[str, Any] = {
        "container_my_ip": "10.1.0.101",
        "container_master_addr": "10.1.0.101",
        "container_image": "i",
    }
    alone = made(PlanEntry("n1"), **here, container_address_map="n1 10.1.0.101\n", **variables)
    assert alone["plugin_socket"] == given.get("container_plugin_socket", ""), "no plan knows the driver"


def test_its_sshd_is_only_there_where_it_is_wanted() -> None:
    part = made(container_ssh_port=2222)
    (config,) = (one["content"] for one in part["files"]["files"] if one["path"].endswith("/sshd_config"))
    assert "Port 2222\nListenAddress 10.1.0.101\n" in config
    assert part["ready_line"] == "Server listening on 10.1.0.101"
    none = made(container_sshd=False)
    assert (none["reads"], none["ready_line"]) == ("", "")
    assert none["command"][-2:] == ["sleep", "infinity"]


@pytest.mark.parametrize("given", [{}, {"container_job_directory": "/data/jobs"}, {"rdm_become": False}])
def test_every_file_of_a_container_is_removed_with_it(given: dict[str, Any]) -> None:
    there, gone = made(PLANNED, **given)["files"], made(PlanEntry("n1"), absent=True, **given)
    for kind in ("files", "directories"):
        assert paths(there, kind) == paths(gone, kind)
    assert ("/var/lib/rdm" in paths(there, "directories")) is (given == {})


def test_facts_and_keys_leave_the_digest() -> None:
    def of(entry: PlanEntry = SEEN, **given: Any) -> str:
        return digest("container", variables(given), entry)

    more = SEEN._replace(keys={"id_ed25519": "x"}, engine={"security_options": ["selinux"]})
    assert of() == of(PLANNED) == of(more) == of(container_ready_timeout=99)
    differ: list[dict[str, Any]] = [
        {"container_env": {"A": "1"}},
        {"rdm_accelerator": "cuda"},
        {"container_rdma": "all"},
    ]
    assert len({of(), *(of(**given) for given in differ)}) == 4
