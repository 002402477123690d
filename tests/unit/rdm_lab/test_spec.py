"""What a lab consists of."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.rdm_lab import inventory, spec
from hypothesis import given
from hypothesis import strategies as st

from rdm_provision.environment import ansible_environment

ALL = spec.Capabilities(tuple(spec.CAPABILITIES), True)
SOME = spec.Capabilities(("CHOWN", "NET_ADMIN"), False)
ROUTES = (
    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    "eth0\t0000140A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"  # 10.20.0.0/24
)


def node(**changes: Any) -> spec.NodeSpec:
    values: dict[str, Any] = {
        "lab": "lab",
        "name": "n1",
        "image": "rdm-lab/node:1",
        "address": "10.20.0.11",
        "network": "rdm-lab-lab",
        "directory": "/home/me/inventory/lab",
        "archives": "/home/me/.cache/x",
        "capabilities": SOME,
        "cgroup_version": "1",
    }
    return spec.NodeSpec(**{**values, **changes})


def variables(driver: str = "macvlan", *archive: str, **more: Any) -> dict[str, Any]:
    """Return the variables in the inventory of a lab with one node."""
    (group,) = inventory.cluster_inventory(
        "lab", {"n1": "10.0.0.1"}, driver, "/tmp/x", *archive, **more
    ).values()
    found: dict[str, Any] = group["vars"]
    return found


@pytest.mark.parametrize("name", ["lab", "a", "lab-2", "x" * 30, "9"])
def test_good_names(name: str) -> None:
    assert spec.checked_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "Lab", "-a", "a-", "a_b", "a b", "x" * 31, "a/b", "../a", "a\n", "$(id)", "ä"]
)
def test_bad_names(name: str) -> None:
    with pytest.raises(spec.LabProblem, match="is no name for a lab"):
        spec.checked_name(name)


@pytest.mark.parametrize("count", [0, -1, 101])
def test_bad_numbers_of_nodes(count: int) -> None:
    with pytest.raises(spec.LabProblem, match=f"a lab of {count} nodes"):
        spec.checked_nodes(count)


def test_the_management_subnet_avoids_routes_networks_and_refusals() -> None:
    networks: list[dict[str, Any]] = [
        {"IPAM": {"Config": [{"Subnet": "10.20.1.0/24"}, {"Subnet": "fd00::/64"}]}},
        {"IPAM": {"Config": None}},
    ]
    assert spec.management_subnet(ROUTES, networks, ["10.20.2.0/24"]) == "10.20.3.0/24"


def test_the_default_route_does_not_use_up_everything() -> None:
    assert spec.management_subnet(ROUTES, []) == "10.20.1.0/24"


def test_no_subnet_is_free() -> None:
    taken = [
        {
            "IPAM": {
                "Config": [{"Subnet": str(net)} for net in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")]
            }
        }
    ]
    with pytest.raises(spec.LabProblem, match="no private /24 network is free"):
        spec.management_subnet("", taken)


@given(st.integers(1, spec.MAX_NODES))
def test_every_node_has_an_address_of_its_own(count: int) -> None:
    names = spec.node_names(count)
    addresses = [ipaddress.IPv4Address(spec.node_address("10.20.0.0/24", name)) for name in names]
    assert len(set(addresses)) == count
    assert all(address in ipaddress.IPv4Network("10.20.0.0/24") for address in addresses)
    assert {ipaddress.IPv4Address("10.20.0.1"), ipaddress.IPv4Address("10.20.0.255")}.isdisjoint(addresses)


def test_capabilities_come_from_the_bounding_set() -> None:
    found = spec.capabilities("Name:\tdockerd\nCapBnd:\t000001fffeffffff\n", 40)
    assert set(spec.CAPABILITIES) - set(found.names) == {"SYS_RESOURCE"}
    assert not found.complete


def test_a_complete_bounding_set_is_complete_also_with_capabilities_that_we_do_not_know() -> None:
    assert spec.capabilities("CapBnd:\t000001ffffffffff\n", 40) == ALL
    assert spec.capabilities("CapBnd:\t000003ffffffffff\n", 41).complete
    assert spec.capabilities("CapBnd:\t0000003fffffffff\n", 37).complete
    assert not spec.capabilities("CapBnd:\t000001ffffffffff\n", 41).complete


def test_a_process_without_a_readable_bounding_set_gives_nothing() -> None:
    assert spec.capabilities("", 40) == spec.Capabilities((), False)


def test_a_node_is_privileged_only_where_that_works() -> None:
    assert spec.node_body(node(capabilities=ALL))["HostConfig"]["Privileged"] is True
    host = spec.node_body(node())["HostConfig"]
    assert "Privileged" not in host
    assert host["CapAdd"] == ["CHOWN", "NET_ADMIN"]
    assert host["DeviceCgroupRules"] == ["a *:* rwm"]


def test_cgroups_by_version() -> None:
    one = spec.node_body(node())["HostConfig"]
    two = spec.node_body(node(cgroup_version="2"))["HostConfig"]
    assert (one["CgroupnsMode"], two["CgroupnsMode"]) == ("host", "private")
    assert "/sys/fs/cgroup:/sys/fs/cgroup" in one["Binds"]
    assert not any("cgroup" in bind for bind in two["Binds"])


def test_a_node_weighs_as_much_as_a_process_and_not_a_part_of_one() -> None:
    assert spec.node_body(node(cgroup_driver="cgroupfs"))["HostConfig"]["CgroupParent"] == "/"
    # There a service of systemd is weighed against others.
    assert "CgroupParent" not in spec.node_body(node(cgroup_driver="systemd"))["HostConfig"]


def test_the_switch_has_the_one_right_that_it_needs() -> None:
    host = spec.switch_body("lab", "rdm-lab/node:1")["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert host["CapAdd"] == ["NET_ADMIN"]
    assert host["NetworkMode"] == "none"


def test_rails_are_bridges_of_the_switch_and_the_containers_are_on_all() -> None:
    assert "Env" not in spec.switch_body("lab", "image")
    assert spec.switch_body("lab", "image", 2)["Env"] == ["RDM_LAB_RAILS=2"]
    assert variables(rails=2)["container_rails"] == ["ib0", "ib1"]
    assert "container_rails" not in variables()
    ports = ["port1", "port1r1", "port11", "port11r1", "port2"]
    assert spec.ports_of("n1", ports) == ["port1", "port1r1"]
    assert spec.ports_of("n11", ports) == ["port11", "port11r1"]


def test_a_node_is_plugged_in_when_all_its_rails_are() -> None:
    ports = ["port1", "port1r1", "port2", "port11r1"]
    plugged = [
        (name, rails)
        for name in ("n1", "n2", "n3")
        for rails in (1, 2)
        if spec.is_plugged(name, ports, rails)
    ]
    assert plugged == [("n1", 1), ("n1", 2), ("n2", 1)]


@pytest.mark.parametrize(
    ("rails", "driver", "sentence"),
    [
        (0, "macvlan", "a lab of 0 rails cannot be made: give a number from 1 to 8"),
        (9, "macvlan", "a lab of 9 rails cannot be made"),
        (2, "bridge", "--rails 2 goes with --driver macvlan, ipvlan or sriov"),
    ],
)
def test_rails_that_a_lab_cannot_have_are_refused(rails: int, driver: str, sentence: str) -> None:
    with pytest.raises(spec.LabProblem, match=sentence):
        spec.checked_rails(rails, driver)


def test_everything_carries_the_label() -> None:
    bodies = [
        spec.network_body("lab", "10.20.0.0/24", "/x"),
        spec.volume_body("lab", "n1"),
        spec.switch_body("lab", "image"),
        spec.node_body(node()),
    ]
    labels = [body.get("Labels") or body["labels"] for body in bodies]
    assert [found[spec.LABEL] for found in labels] == ["lab"] * 4


def test_a_container_is_stale_when_its_specification_has_changed() -> None:
    body = spec.node_body(node())
    found = {"Labels": body["Labels"]}
    assert not spec.stale(found, body)
    assert not spec.stale(None, body)
    assert spec.stale(found, spec.node_body(node(image="rdm-lab/node:2")))
    assert spec.stale({"Labels": None}, body)


def test_no_two_labs_share_the_name_of_a_container() -> None:
    labs, parts = ("a", "a-n1", "a-n1-n1", "a-switch"), ("switch", "n1", "n2")
    names = {spec.object_name(lab, part) for lab in labs for part in parts}
    assert len(names) == len(labs) * len(parts)


def test_the_inventory_keeps_the_nodes_variables_off_the_control_machine() -> None:
    made = inventory.cluster_inventory("lab", {"n1": "10.0.0.1", "n2": "10.0.0.2"}, "macvlan", "/tmp/x")
    assert "all" not in made
    (group,) = made.values()
    assert group["children"]["master"]["hosts"] == {"n1": {"ansible_host": "10.0.0.1"}}
    assert list(group["children"]["workers"]["hosts"]) == ["n2"]
    (alone,) = inventory.cluster_inventory("lab", {"n1": "10.0.0.1"}, "macvlan", "/tmp/x").values()
    assert alone["children"]["workers"]["hosts"] == {}
    assert group["vars"]["rdm_accelerator"] == "cpu"
    # Nodes of one busy machine: a login may last longer than the role's 10 s, and Ansible's 20 s.
    assert (group["vars"]["verify_deadline"], group["vars"]["ansible_timeout"]) == (90.0, 60)
    assert [image["name"] for image in group["vars"]["images_list"]] == ["rdm-lab/cpu:1"]


def test_the_inventory_for_sriov_names_the_stand_in() -> None:
    found = variables("sriov")
    assert found["sriov_image"] == "rdm-lab/sriov-plugin:1"
    assert len(found["images_list"]) == 2


def test_virtual_machines_have_vfs_of_their_own_and_all_rights_of_a_host() -> None:
    found = variables("sriov", machines=True)
    assert (found["network_driver"], found["network_parent"]) == ("sriov", "ib0")
    assert found["sriov_vfs"] == inventory.VIRTUAL_FUNCTIONS == 7
    # A translated sshd needs more than the default of 5 s to greet.
    assert 30 < found["verify_timeout"] < found["verify_deadline"]
    assert not {"sriov_image", "container_memlock_required"} & set(found)
    assert [image["name"] for image in found["images_list"]] == ["rdm-lab/cpu:1"]


@pytest.mark.parametrize("driver", ["macvlan", "sriov"])
def test_a_lab_that_trains_runs_the_training_image(driver: str) -> None:
    found = variables(driver, "train-1-2.tar")
    assert found["container_image"] == "rdm-lab/train:1"
    first = found["images_list"][0]
    assert (first["name"], first["path"]) == ("rdm-lab/train:1", "/srv/rdm/images/train-1-2.tar")
    assert "rdm-lab/cpu:1" not in {image["name"] for image in found["images_list"]}


def test_host_keys_are_known_by_address_and_by_name() -> None:
    text = inventory.known_hosts({"n1": "10.0.0.1"}, {"n1": "ssh-ed25519 AAAA comment\n"})
    assert text == "10.0.0.1,n1 ssh-ed25519 AAAA\n"


def test_the_ssh_configuration_checks_host_keys_and_quotes_paths() -> None:
    text = inventory.ssh_config({"n1": "10.0.0.1"}, "/a dir")
    assert "StrictHostKeyChecking yes" in text
    assert 'UserKnownHostsFile "/a dir/.rdm/lab/known_hosts"' in text


def test_nodes_of_a_slurm_lab_share_a_volume_and_have_stand_ins_for_gpus() -> None:
    body = spec.node_body(node(slurm=True))
    assert "rdm-lab-lab-shared:/shared" in body["HostConfig"]["Binds"]
    assert body["Env"] == ["RDM_LAB_GPUS=4"]
    assert spec.shared_volume_body("lab")["labels"] == spec.labels("lab")  # by which it goes away
    assert "/shared" not in str(spec.node_body(node()))


def test_nodes_with_podman_keep_its_storage_and_the_inventory_names_its_socket() -> None:
    body = spec.node_body(node(podman=True))
    assert "rdm-lab-lab-n1:/var/lib/containers" in body["HostConfig"]["Binds"]
    assert body["Cmd"] == ["rdm-podman-node"]
    assert variables(podman=True)["rdm_docker_socket"] == "/run/podman/podman.sock"


def test_options_incompatible_with_podman_are_refused() -> None:
    assert spec.checked_podman("podman", "bridge", False)
    assert not spec.checked_podman("26.1", "sriov", True)
    with pytest.raises(spec.LabProblem, match=r"no network driver sriov: --engine podman goes with"):
        spec.checked_podman("podman", "sriov", False)
    with pytest.raises(spec.LabProblem, match="leave --engine podman out"):
        spec.checked_podman("podman", "macvlan", True)


def test_a_labs_ssh_is_that_of_any_cluster_but_waits_for_longer(tmp_path: Path) -> None:
    config = tmp_path / "ansible.cfg"
    config.touch()
    usual = ansible_environment({"ANSIBLE_CONFIG": str(config)})["ANSIBLE_SSH_ARGS"]
    assert "ServerAliveCountMax=3" in usual
    assert variables()["ansible_ssh_args"] == usual.replace("CountMax=3", "CountMax=12")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_inventory_of_a_slurm_lab_puts_each_node_into_a_partition(count: int) -> None:
    addresses = {name: f"10.20.0.1{name[1:]}" for name in spec.node_names(count)}
    made = inventory.slurm_inventory(inventory.cluster_inventory("lab", addresses, "macvlan", "/tmp/x"))[
        "cluster"
    ]
    partitions = made["vars"]["slurm_partitions"]
    inside = [host for name in partitions for host in made["children"][name]["hosts"]]
    assert inside == [*addresses]
    assert [name for name, one in partitions.items() if one["default"]] == ["hgx"]
    assert [*made["children"]["login"]["hosts"]] == ["n1"]
    assert made["children"]["hgx"]["vars"] == {"slurm_gpu_type": "hgx"}


def test_the_inventory_of_a_slurm_lab_is_one_that_env_up_and_jobs_through_slurm_take() -> None:
    addresses = {"n1": "10.20.0.11", "n2": "10.20.0.12"}
    packages = inventory.NodePackages("packages-1", "/cache/a", "torch==2+cpu")
    made = inventory.slurm_inventory(
        inventory.cluster_inventory("lab", addresses, "macvlan", "/tmp/x"), packages
    )["cluster"]
    of = made["vars"]
    # A job through Slurm needs an environment, and env up makes one of bare hosts alone.
    assert (of["rdm_runtime"], of["rdm_become"], of["python_env_shared"]) == ("host", False, True)
    pins = {
        node: one["my_ip"]
        for g in ("master", "workers")
        for node, one in made["children"][g]["hosts"].items()
    }
    assert (pins, of["rdm_subnet"]) == (addresses, "10.20.0.0/24")
    assert of["python_env_find_links"] == [f"{spec.IMAGES_AT}/packages-1"]
    assert of["python_env_controller_find_links"] == ["/cache/a/packages-1"]
    assert (of["python_env_torch"], of["python_env_no_index"]) == ("torch==2+cpu", True)
    # Without packages here, those of the indexes.
    plain = inventory.slurm_inventory(inventory.cluster_inventory("lab", addresses, "macvlan", "/tmp/x"))[
        "cluster"
    ]["vars"]
    assert plain["rdm_runtime"] == "host"
    assert not {"python_env_no_index", "python_env_torch"} & set(plain)
