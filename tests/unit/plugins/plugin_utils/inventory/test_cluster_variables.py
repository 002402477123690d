"""The cluster's variables, validated for all nodes at once."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.cluster_variables import (
    Inventory,
    check_inventory,
    outside,
)


def inventory(masters: str = "m", workers: str = "w1 w2", **changes: Any) -> Inventory:
    """An inventory of CPU nodes; `host__variable=value` sets one host's variable, `variable=value` all."""
    hosts: dict[str, dict[str, Any]] = {
        host: {"rdm_accelerator": "cpu"} for host in (*masters.split(), *workers.split())
    }
    for name, value in changes.items():
        host, _, variable = name.rpartition("__")
        for one in [host] if host else hosts:
            hosts[one][variable] = value
    return check_inventory(masters.split(), workers.split(), hosts)


def problems(*args: str, **changes: Any) -> list[str]:
    found = inventory(*args, **changes).problems
    return [f"{problem.node}: {problem.sentence}" if problem.node else problem.sentence for problem in found]


def test_sound_inventory_is_resolved() -> None:
    found = inventory(rdm_slots="4", rdm_become="no", rdm_subnet="10.9.0.0/24", w1__my_ip="10.9.0.7")
    assert found.problems == []
    assert (found.cluster, found.subnet, found.gateway) == ("rdm", "10.9.0.0/24", "")
    assert list(found.nodes) == ["m", "w1", "w2"]
    assert found.nodes["m"] == ("cpu", 4, False, "")
    assert found.pins == {"w1": "10.9.0.7"}
    assert found.ssh_addresses == {"m": "m", "w1": "w1", "w2": "w2"}


@pytest.mark.parametrize(
    ("masters", "workers", "words"),
    [
        ("", "", "the cluster is empty"),
        ("", "w1 w2", "the group master has no host: move one host there from workers, for example w1"),
        ("m n", "w", "the group master has 2 hosts (m, n): leave one there"),
        ("m", "m w", "m: is in both groups, master and workers"),
        ("m", "-w", "the host name '-w' has characters"),
        ("m", "w$(x)", "the host name 'w$(x)' has characters"),
        (
            "m",
            "localhost",
            "the host name 'localhost' refers to whichever host or container uses it: give the host",
        ),
    ],
)
def test_bad_groups_and_names(masters: str, workers: str, words: str) -> None:
    [sentence] = problems(masters, workers)
    assert words in sentence


def test_one_node_is_a_cluster() -> None:
    assert problems("m", "") == []
    assert problems("localhost", "") == []


def test_same_host_under_two_names() -> None:
    [sentence] = problems(m__ansible_host="10.0.0.1", w1__ansible_host="10.0.0.1")
    assert sentence == "w1: 10.0.0.1:22 is the same host as m: list each node once"
    [sentence] = problems(m__ansible_host="fd00::1", w1__ansible_host="fd00::1")
    assert sentence.startswith("w1: [fd00::1]:22 is the same host as m")
    assert problems(m__ansible_host="w1") == ["w1: w1:22 is the same host as m: list each node once"]
    assert (
        problems(ansible_host="127.0.0.1", m__ansible_port=2201, w1__ansible_port=2202, w2__ansible_port=2203)
        == []
    )
    assert problems(ansible_host="127.0.0.1", ansible_connection="local") == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("-J gate-a", "-J gate-b"),
        ("-o ProxyJump=gate-a", "-oProxyJump=gate-b"),
        ("-o 'ProxyCommand ssh -W %h:%p gate-a'", "-o 'proxycommand ssh -W %h:%p gate-b'"),
        ("-F site-a.conf", "-F site-b.conf"),
        ("", "-J gate-b"),
    ],
)
def test_one_address_behind_two_jump_hosts_is_two_hosts(one: str, other: str) -> None:
    same = {"m__ansible_host": "10.0.0.1", "w1__ansible_host": "10.0.0.1"}
    assert problems(m__ansible_ssh_common_args=one, w1__ansible_ssh_common_args=other, **same) == []
    again = {"m__ansible_ssh_common_args": f"{other} -C", "w1__ansible_ssh_common_args": f"-4 {other}"}
    assert problems(**again, **same) == ["w1: 10.0.0.1:22 is the same host as m: list each node once"]


def test_missing_and_unknown_accelerator() -> None:
    assert problems(w1__rdm_accelerator="tpu") == [
        "w1: rdm_accelerator 'tpu' is not an accelerator: choose rocm, cuda or cpu"
    ]
    assert len(problems(rdm_accelerator=None)) == 3


@pytest.mark.parametrize("slots", [0, -1, "many", True, 1.5, "", [8]])
def test_bad_slots(slots: Any) -> None:
    [sentence] = problems(w1__rdm_slots=slots)
    assert sentence.startswith(f"w1: rdm_slots {slots!r} is not a number of processes")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("rdm_gpu_price", -1, "-1 is no price: set what a GPU costs for an hour, as 2.5"),
        ("rdm_gpu_speed", 90, "90 is no share of a speed: set what part of it the node reaches, as 0.9"),
        ("rdm_gpu_speed", 0, "0 is no share of a speed: set what part of it the node reaches, as 0.9"),
    ],
)
def test_bad_prices_and_speeds_of_gpus(variable: str, value: float, words: str) -> None:
    assert problems(**{f"w1__{variable}": value}) == [f"w1: {variable} {words}"]


@pytest.mark.parametrize("directory", ["etc/rdm", "~/rdm", "/", "/etc/rdm/", "/etc/a:b", "/etc/a\nb"])
def test_bad_config_dir(directory: str) -> None:
    [sentence] = problems(w1__rdm_config_dir=directory)
    assert sentence.startswith("w1: rdm_config_dir")


@pytest.mark.parametrize("directory", ["/etc", "/home", "/var/lib", "/etc/rdm/..", "//etc", "/usr/bin"])
def test_a_config_dir_is_no_directory_of_the_operating_system(directory: str) -> None:
    hint = "give the cluster a directory of its own, such as /etc/rdm"
    assert problems(w1__rdm_config_dir=directory) == [
        f"w1: rdm_config_dir {directory!r} is a directory of the operating system: {hint}"
    ]


@pytest.mark.parametrize(
    "socket", ["docker.sock", "unix:///run/docker.sock", "tcp://n1:2375", "/run/a b", "/"]
)
def test_bad_docker_socket(socket: str) -> None:
    [sentence] = problems(w1__rdm_docker_socket=socket)
    assert sentence.startswith(f"w1: rdm_docker_socket {socket!r} is not the path of an engine's socket")
    assert problems(w1__rdm_docker_socket="/run/user/1000/docker.sock") == []


@pytest.mark.parametrize("port", ["ssh", "", 0, 65536, 22.0, "22.0", True])
def test_bad_port(port: Any) -> None:
    hint = "choose one from 1 to 65535, or leave it out for 22"
    assert problems(w1__ansible_port=port) == [f"w1: ansible_port {port!r} is not a port: {hint}"]
    assert problems(w1__ansible_port=port, ansible_connection="local") == []


def test_a_port_may_be_text() -> None:
    assert problems(w1__ansible_port="2222", w2__ansible_port=None) == []


def test_odd_but_usable_config_dir_is_kept() -> None:
    assert inventory(rdm_config_dir="/srv/a b'$(c)").nodes["m"].config_dir == "/srv/a b'$(c)"


def test_bad_become() -> None:
    [sentence] = problems(w2__rdm_become="perhaps")
    assert sentence == "w2: rdm_become 'perhaps' is neither true nor false: set it to true or false"


@pytest.mark.parametrize("name", ["Rdm", "", "-x", "a b", "a\n"])
def test_bad_cluster_name(name: str) -> None:
    [sentence] = problems(rdm_cluster=name)
    assert "is not a cluster name" in sentence


@pytest.mark.parametrize("option", ["rdm_cluster", "rdm_subnet", "rdm_gateway"])
def test_values_of_the_whole_cluster_must_not_differ(option: str) -> None:
    [sentence] = problems(**{f"w2__{option}": "other"})
    assert sentence.startswith(f"{option} differs between nodes: ")
    assert "'other' on w2" in sentence


def test_all_problems_are_found_at_once() -> None:
    found = problems("", "a b", rdm_accelerator="x", a__rdm_slots=0, a__ansible_host="b", rdm_cluster="X")
    assert len(found) == 6


BARE = {"rdm_runtime": "host", "rdm_become": False, "m__my_ip": "10.2.72.135", "w__my_ip": "10.2.72.136"}


def test_bare_hosts_have_their_own_addresses_and_no_root() -> None:
    assert inventory("m", "w", **BARE).problems == []
    assert inventory("m", "w", **BARE).runtime == "host"
    assert inventory("m", "w").runtime == "container"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rdm_runtime": "hots"}, "rdm_runtime 'hots' is nothing that jobs run in: choose container or host"),
        ({"w__rdm_runtime": "container"}, "rdm_runtime differs between nodes"),
        ({"w__rdm_become": True}, "w: rdm_become true is for containers: on bare hosts jobs run as the user"),
        ({"w__my_ip": ""}, "w: my_ip is not set, and a bare host is given none"),
    ],
)
def test_requirements_of_bare_hosts(change: dict[str, Any], sentence: str) -> None:
    [problem] = problems("m", "w", **{**BARE, **change})
    assert sentence in problem


def test_hosts_of_a_group_that_is_misspelt_are_refused_and_others_outside_are_reported() -> None:
    groups = {"all": ["m", "w", "v", "s", "c", "x"], "master": ["m"], "workers": ["w"], "rack1": ["m", "x"]}
    groups |= {"worker": ["w", "v"], "Masters": ["s"], "login": ["c"], "ungrouped": []}
    found, warnings = outside(groups)
    assert [problem.sentence for problem in found] == [
        "v is in neither master nor workers (group: worker): did you mean workers?",
        "s is in neither master nor workers (group: Masters): did you mean master?",
    ]
    assert warnings == ["x is no node of this cluster: in neither master nor workers."]


def test_a_host_with_the_name_of_a_group_of_others_is_refused() -> None:
    groups = {"all": ["m", "workers", "w", "disks", "d1"], "master": ["m"], "workers": ["workers", "w"]}
    found, _ = outside({**groups, "w": ["w"], "disks": ["d1"], "m": []})
    assert [(problem.node, problem.value) for problem in found] == [("m", ""), ("workers", "")]
    assert found[0].sentence == (
        "is also the name of a group, which Ansible takes in its place: rename the host or the group"
    )


def test_hosts_of_the_groups_that_have_a_part_are_no_matter() -> None:
    groups = {"all": ["m", "c", "h"], "master": ["m"], "login": ["h"], "slurm_controller": ["c"]}
    assert outside(groups) == ([], [])
