"""The plan for a whole cluster, from the inventory and then from the nodes' reports."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import inspection
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.cluster import (
    plan_nodes,
    problems_of_nodes,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.cluster_lock import Leader
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.cluster_plan import (
    ClusterPlan,
    plan_cluster,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import DesiredState
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)

from tests.unit.plugins.desired_states import ENTRY, wanted
from tests.unit.plugins.node_reports import container, report

CPU = {"rdm_accelerator": "cpu"}
HOSTS = ("m", "w1", "w2")


def planned(**changes: Any) -> ClusterPlan:
    plan, problems = plan_cluster(["m"], ["w1", "w2"], {host: {**CPU, **changes} for host in HOSTS})
    assert problems == []
    assert plan is not None
    return plan


def refused(*inventory: Any) -> str:
    return " ".join(problem.sentence for problem in plan_cluster(*inventory)[1])


def wants(plan: ClusterPlan, **changes: Any) -> dict[str, DesiredState]:
    shared: dict[str, Any] = {"subnet": str(plan.addresses.subnet), "gateway": plan.addresses.gateway}
    return {
        name: wanted(
            ENTRY._replace(node=name, my_ip=my_ip, **shared),
            cluster=plan.inventory.cluster,
            accelerator=plan.inventory.nodes[name].accelerator,
            **changes,
        )
        for name, my_ip in plan.addresses.nodes.items()
    }


def test_a_subnet_that_widens_by_itself_is_reported_once() -> None:
    hosts = [f"w{number}" for number in range(253)]
    inventory = (["m"], hosts, dict.fromkeys(["m", *hosts], CPU))
    plan, _ = plan_cluster(*inventory)
    assert plan is not None
    assert plan.warnings[0] == (
        "The subnet 192.169.16.0/24 is too small for 254 nodes, so the container network gets "
        "192.169.0.0/16; rdm_subnet chooses another."
    )
    again, _ = plan_cluster(*inventory, plan.addresses)
    assert again is not None
    assert again.warnings == []
    before = planned().addresses
    grown, _ = plan_cluster(*inventory, before, replace_network=True)
    assert grown is not None
    assert grown.warnings[0] == plan.warnings[0]
    wide = CPU | {"rdm_subnet": "10.0.0.0/8"}
    chosen, _ = plan_cluster(["m"], hosts, dict.fromkeys(["m", *hosts], wide))
    assert chosen is not None
    assert chosen.warnings == []


def test_inventory_alone_gives_addresses_and_a_warning_about_the_default_subnet() -> None:
    plan = planned()
    assert plan.addresses.nodes == {"m": "192.169.16.100", "w1": "192.169.16.101", "w2": "192.169.16.102"}
    assert len(plan.warnings) == 1
    assert planned(rdm_subnet="10.9.0.0/24").warnings == []
    # With a saved plan the user has seen it.
    again, _ = plan_cluster(["m"], ["w1"], dict.fromkeys(HOSTS, CPU), plan.addresses)
    assert again is not None
    assert again.warnings == []


def test_the_private_subnet_that_a_warning_proposes_holds_no_ssh_address() -> None:
    plan, problems = plan_cluster(["m"], [], {"m": {**CPU, "ansible_host": "10.20.0.11"}})
    assert plan is not None
    assert problems == []
    assert "A private one would be 10.20.1.0/24 " in plan.warnings[0]


def test_problems_of_inventory_addresses_and_caller_come_at_once() -> None:
    variables = {
        "m": {"rdm_accelerator": "tpu", "my_ip": "10.0.0.1"},
        "w1": {**CPU, "my_ip": "192.169.16.7"},
        "w2": {**CPU, "my_ip": "192.169.16.7"},
    }
    _, problems = plan_cluster(["m"], ["w1", "w2"], variables, problems=[Problem("w1", "x", "y", "z")])
    assert [(problem.node, problem.value) for problem in problems] == [
        ("w1", "x"),
        ("m", "rdm_accelerator 'tpu'"),
        ("m", "my_ip 10.0.0.1"),
        ("w2", "my_ip 192.169.16.7"),
    ]


def test_problems_of_nodes_come_with_those_of_the_inventory() -> None:
    plan, found = plan_cluster(["m"], ["w1", "w2"], {"m": CPU, "w1": CPU, "w2": {**CPU, "rdm_slots": "many"}})
    assert plan is not None
    without_engine = report(docker=None, docker_state="absent", docker_error="Docker is not installed")
    states = wants(plan, network_parent="ib7")

    def problems_with(found: list[Problem]) -> list[tuple[str | None, str]]:
        facts = {"m": report(), "w2": without_engine}
        return [(one.node, one.sentence[:20]) for one in problems_of_nodes(plan, found, states, facts)]

    parent, engine = ("m", "network_parent ib7 i"), ("w2", "Docker is not instal")
    assert problems_with(found) == [parent, engine]
    assert problems_with([Problem(None, "the plan", "is bad", "")]) == [engine]
    assert problems_with([Problem("m", "x", "is bad", "")])[0][0] == "w2"


def test_addresses_of_ssh_are_compared_without_querying_a_node() -> None:
    near = {**CPU, "ansible_host": "10.9.0.7", "rdm_subnet": "10.9.0.0/24"}
    message = refused(["m"], [], {"m": near})
    assert "ansible_host 10.9.0.7 lies in the container network's subnet" in message


def test_loopback_subnet_is_refused() -> None:
    assert "loopback" in refused(["m"], [], {"m": {**CPU, "rdm_subnet": "127.1.0.0/24"}})


def test_nodes_with_facts_are_described_and_the_others_left_out() -> None:
    plan = planned(rdm_slots=2)
    nodes = plan_nodes(plan, wants(plan), {"w1": report()}).nodes
    assert list(nodes) == ["w1"]
    assert nodes["w1"].config_dir == "/etc/rdm"
    assert nodes["w1"].container["ulimits"] == ["memlock:-1:-1"]
    assert nodes["w1"].network_present is False
    assert nodes["w1"].network_differences == []
    assert nodes["w1"].shells == {"bash": True, "zsh": False}


@pytest.mark.parametrize(
    ("settings", "directory"),
    [
        ({"rdm_become": False}, "/home/ops/.rdm/node1"),
        ({"rdm_config_dir": "/srv/rdm"}, "/srv/rdm"),
        ({}, "/etc/rdm"),
    ],
)
def test_files_go_where_the_user_may_write(settings: dict[str, Any], directory: str) -> None:
    plan = planned(**settings)
    user = {"name": "ops", "uid": 1000, "home": "/home/ops", "shell": "/bin/bash", "root": False}
    assert plan_nodes(plan, wants(plan), {"m": report(user=user)}).nodes["m"].config_dir == directory


def test_nodes_share_a_warning() -> None:
    plan = planned()
    warm = report(findings=[{"level": "warning", "what": "x", "text": "it is warm"}])
    assert plan_nodes(plan, wants(plan), {"m": warm, "w1": report(), "w2": warm}).warnings == [
        "m, w2: it is warm."
    ]


def test_a_node_whose_fabric_differs_from_the_others_is_a_warning() -> None:
    plan = planned()
    shared, exclusive = (
        report(fabric_interfaces=[{"name": "ib9", "rail": 0}], rdma={"netns_mode": mode, "ofed": False})
        for mode in ("shared", "exclusive")
    )
    facts = {"m": shared, "w1": exclusive, "w2": shared}
    (warning,) = plan_nodes(plan, wants(plan, network_driver="bridge"), facts).warnings
    assert warning.startswith(
        "w1: driver: the mode of RDMA devices in network namespaces is exclusive, and the 2"
    )


def test_an_archive_that_nodes_pass_on_must_have_the_same_images_on_all() -> None:
    plan = planned()
    facts: Any = {
        name: {**report(), "archives": [{**inspection("/a.tar"), "storage": {"images": images}}]}
        for name, images in {"m": ["sha256:1"], "w1": ["sha256:2"], "w2": ["sha256:1"]}.items()
    }
    peers = wants(plan, images_distribution="peers")
    with pytest.raises(PreconditionFailed) as refused:
        plan_nodes(plan, peers, facts)
    [problem] = refused.value.problems
    assert str(problem) == (
        "/a.tar has other images on w1 than on m, and with images_distribution peers all would get the file "
        "of one node: put the same file on all of them, or set images_distribution to direct"
    )
    assert plan_nodes(plan, wants(plan), facts).nodes, "with auto, each node reads its own"
    facts["w1"]["archives"] = [inspection("/a.tar")]
    assert plan_nodes(plan, peers, facts).nodes, "w1 has its image"


def test_a_plan_that_ends_a_job_is_refused_before_a_change_and_else_reported() -> None:
    plan = planned()
    trains = {**container("rdm", "rdm", ibnet="192.169.16.9"), "jobs": ["one"]}
    facts = {"m": report(), "w1": report(docker_containers=[trains])}
    with pytest.raises(PreconditionFailed, match="w1: the job one runs in the container"):
        plan_nodes(plan, wants(plan), facts)
    (warning,) = plan_nodes(plan, wants(plan), facts, changes=False).warnings
    assert warning.startswith("This would be refused: w1: the job one runs")


def test_an_address_that_another_on_the_wire_has_is_refused_unless_it_is_one_of_ours() -> None:
    plan = planned()
    used = [{"interface": "ib0", "address": "192.169.16.100", "mac": "02:42:c0:a9:10:64"}]
    facts = {"m": report(in_use=used), "w1": report()}
    message = "m: 192.169.16.100 is used already on ib0 by 02:42:c0:a9:10:64: set rdm_subnet to a subnet of"
    with pytest.raises(PreconditionFailed, match=message):
        plan_nodes(plan, wants(plan), facts)
    # The two will exchange their addresses.
    facts["w1"] = report(docker_containers=[container("rdm", "rdm", ibnet="192.169.16.100")])
    assert plan_nodes(plan, wants(plan), facts).nodes
    facts["w1"] = report(docker_containers=[container("rdm", "other", ibnet="192.169.16.100")])
    with pytest.raises(PreconditionFailed, match=message):
        plan_nodes(plan, wants(plan), facts)


def test_a_node_that_another_run_changes_is_refused_and_shown_to_who_only_reads() -> None:
    plan = planned()
    leader = Leader("rdm-provision up", 7, 1, "eve", "ctl", "", 1764060730.0)
    holder = {"run": "x", "leader": leader._asdict()}
    other = {"run": "x", "leader": {"who": "a later version"}}
    facts = {"m": report(), "w1": report(lock=holder), "w2": report(lock=other)}
    reported = r"w1: is being changed by rdm-provision up \(process 7 of eve on ctl\) since 2025-11-25 "
    with pytest.raises(PreconditionFailed, match=reported) as refused:
        plan_nodes(plan, wants(plan), facts)
    assert "w2: is being changed by a run of another version" in str(refused.value)
    warnings = plan_nodes(plan, wants(plan), facts, changes=False).warnings
    assert [line.partition(": ")[2][:28] for line in warnings] == [
        "w1: is being changed by rdm-",
        "w2: is being changed by a ru",
    ]


def test_bare_hosts_keep_the_addresses_that_ssh_uses_and_need_no_engine() -> None:
    bare = {
        **CPU,
        "rdm_runtime": "host",
        "rdm_become": False,
        "rdm_subnet": "10.0.0.0/24",
        "rdm_gateway": "10.0.0.254",
    }
    variables = {"m": {**bare, "my_ip": "10.0.0.1", "ansible_host": "10.0.0.1"}}
    plan, problems = plan_cluster(["m"], [], variables)
    assert plan is not None
    assert problems == []
    assert plan_nodes(plan, wants(plan), {"m": report(docker=None)}).warnings == []
    with pytest.raises(PreconditionFailed, match=r"my_ip 10\.0\.0\.1 is no address of the host"):
        plan_nodes(plan, wants(plan), {"m": report(docker=None, interfaces=[])})
