"""Reading inventories, selecting nodes, planning, and the results of status and exec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rdm_provision.api.cluster import Cluster
from rdm_provision.errors import InputError, InventoryError
from rdm_provision.results.events import NodeRecap, RunResult
from rdm_provision.results.outcomes import CONTAINER_MODULE, EXEC_MODULE, FACTS_MODULE
from rdm_provision.runner.inventory import find_inventory
from tests.unit.rdm_provision.conftest import NODES, MakeInventory

NETWORK = "[network]\nsubnet = 10.77.0.0/24\ngateway = 10.77.0.1\n"


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    groups = {
        "all": (*NODES, "bastion"),
        "master": ("node1",),
        "workers": ("node2", "node3"),
        "rack1": ("node1", "node2"),
        "ungrouped": ("bastion",),
    }
    hostvars: dict[str, dict[str, Any]] = {name: {} for name in groups["all"]}
    hostvars["node2"] = {"ansible_host": "10.0.0.2"}
    return Cluster(Path("/nowhere/inventory"), groups, hostvars, {"rdm_cluster": "mine"})


# --- reading --------------------------------------------------------------------------------------


def test_nodes_come_in_the_order_of_ranks_with_their_variables(make_inventory: MakeInventory) -> None:
    path = make_inventory("z", "b", "a", hosts={"b": {"ansible_host": "10.0.0.2"}}, rdm_cluster="mine")
    (path / "address_plan.cfg").write_text(f"{NETWORK}[nodes]\nz = 10.77.0.100\n", encoding="utf-8")
    cluster = Cluster.load(path)
    assert [(node.name, node.rank, node.address, node.my_ip) for node in cluster.nodes] == [
        ("z", 0, "z", "10.77.0.100"),
        ("b", 1, "10.0.0.2", None),
        ("a", 2, "a", None),
    ]
    assert cluster.name == "mine"
    assert cluster.nodes[1].variables["rdm_accelerator"] == "cpu"


BROKEN = {
    "yaml": (
        "hosts.yml",
        "all:\n  children:\n    master: {hosts: {a: {x: 1\n",
        ["hosts.yml:", "cannot be read"],
    ),
    "group that is none": ("hosts.yml", "all: {children: {master: a}}\n", ["hosts.yml", "master"]),
    "group that is a value": (
        "hosts.yml",
        "master: n1\nworkers: {hosts: {a: }}\n",
        ["master is no dictionary: a group has the keys hosts"],
    ),
    "misspelt key": ("hosts.yml", "workers: {host: {a: }}\n", ["the group workers has the key host"]),
    "misspelt key of another group": (
        "hosts.yml",
        "all: {defaults: {x: 1}, childrn: {workers: {hosts: {c: }}}, children: {workers: {hosts: {b: }}}}\n",
        ["the group all has the key childrn"],
    ),
    "group without children above it": (
        "hosts.yml",
        "all: {workers: {hosts: {c: }}, children: {master: {hosts: {b: }}}}\n",
        ["the group all has the key workers"],
    ),
    "group as a list above it": (
        "hosts.yml",
        "all: {workers: [c], children: {master: {hosts: {b: }}}}\n",
        ["the group all has the key workers"],
    ),
    "misspelt table": ("hosts.toml", "[workers.host.a]\n", ["the group workers has the key host"]),
    "hosts as a list": (
        "hosts.yml",
        "master: {hosts: [a]}\n",
        ["hosts of the group master is a list", "{node1: }"],
    ),
    "hosts as a number": (
        "hosts.yml",
        "master: {hosts: 5}\n",
        ["hosts of the group master is a single value"],
    ),
    "children as a list": (
        "hosts.yml",
        "workers: {children: [a]}\n",
        ["of the group workers is a list", "{rack1: }"],
    ),
    "host that is a value": (
        "hosts.yml",
        "master: {hosts: {a: 5}}\n",
        ["variables of a host are no dictionary"],
    ),
    "a list": ("hosts.yml", "- a\n- b\n", ["hosts.yml", "it is a list", "master: {hosts: "]),
    "ini": ("hosts.ini", "[master\nnode1\n", ["hosts.ini", "neither"]),
    "variables": ("group_vars/all.yml", "a: b: c\n", ["group_vars/all.yml:1:5"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_inventory_that_cannot_be_parsed(make_inventory: MakeInventory, case: str) -> None:
    name, text, words = BROKEN[case]
    path = make_inventory()
    if not name.startswith("group_vars"):
        (path / "hosts.yml").unlink()
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InventoryError) as caught:
        Cluster.load(path)
    message = f"{caught.value}: {caught.value.hint}"
    assert "\n" not in message
    assert "<class" not in message
    for word in words:
        assert word in message


def test_invalid_port_is_refused_before_a_run(make_inventory: MakeInventory) -> None:
    over_ssh = {"ansible_connection": "ssh", "ansible_port": "ssh"}
    hosts = {"a": over_ssh, "b": {**over_ssh, "ansible_port": "{{ 2222 }}"}, "c": {"ansible_port": "ssh"}}
    with pytest.raises(InventoryError, match="has an invalid port") as caught:
        Cluster.load(make_inventory("a", "b", "c", hosts=hosts))
    (problem,) = caught.value.problems
    assert (problem.node, problem.value) == ("a", "ansible_port 'ssh'")
    assert Cluster.load(make_inventory("a", "b", "c", hosts={**hosts, "a": {}})).nodes


@pytest.mark.parametrize("group", ["login", "slurm_controller", "others"])
def test_a_port_of_a_host_that_is_no_node(tmp_path: Path, group: str) -> None:
    (tmp_path / "hosts.ini").write_text(f"[master]\na\n[{group}]\nb ansible_port=ssh\n", encoding="utf-8")
    if group == "others":
        assert Cluster.load(tmp_path).nodes
        return
    with pytest.raises(InventoryError) as caught:
        Cluster.load(tmp_path)
    assert [problem.node for problem in caught.value.problems] == ["b"]


def test_one_broken_inventory_file_among_several_is_reported(make_inventory: MakeInventory) -> None:
    path = make_inventory()
    (path / "more.yml").write_text("all: [\n", encoding="utf-8")
    with pytest.raises(InventoryError, match=r"more\.yml"):
        Cluster.load(path)


def test_keys_for_yaml_anchors_make_no_trouble(make_inventory: MakeInventory) -> None:
    path = make_inventory()
    text = "all: {x-vars: &v {a: 1}, defaults: {}, _vars: *v, vars: *v}\nworkers: {x-hosts: {c: }}"
    (path / "more.yml").write_text(text, encoding="utf-8")
    assert Cluster.load(path).nodes[1].variables["a"] == 1


def test_other_files_of_an_inventory_make_no_trouble(make_inventory: MakeInventory) -> None:
    path = make_inventory()
    (path / "id_key").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n", encoding="utf-8")
    (path / "job.yaml").write_text(
        "data: {num_workers: 4}\nmirror: {host: cache, args: [a]}\n", encoding="utf-8"
    )
    (path / "notes").mkdir()
    assert len(Cluster.load(path).nodes) == 3


def test_a_directory_without_an_inventory(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(InventoryError, match="mine is empty") as caught:
        Cluster.load(tmp_path / "mine")
    assert "hosts.yml" in caught.value.hint


def test_an_inventory_without_nodes(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("all: {hosts: {stray: {}}}\n", encoding="utf-8")
    with pytest.raises(InventoryError, match=r"no host in the groups master and workers$"):
        Cluster.load(tmp_path)
    (tmp_path / "hosts.yml").write_text("masters: {hosts: {a: }}\nworker: {hosts: {b: }}\n", encoding="utf-8")
    with pytest.raises(InventoryError, match=r"master and workers, only in masters, worker$"):
        Cluster.load(tmp_path)


def test_an_inventory_of_a_login_host_alone_is_for_jobs(tmp_path: Path) -> None:
    text = "all: {children: {login: {hosts: {front: {}, second: {}}}}}\n"
    (tmp_path / "hosts.yml").write_text(text, encoding="utf-8")
    cluster = Cluster.load(tmp_path)
    for run in (cluster.train(resume="gpt-1"), cluster.jobs(), cluster.logs("gpt-1"), cluster.stop("gpt-1")):
        assert run.spec.nodes == ("front",)
    for verb in (cluster.up, cluster.check, cluster.env_up, cluster.env_down, cluster.slurm_up):
        with pytest.raises(InputError, match=r"needs nodes, and .* has only front") as refused:
            verb()
        assert "master and workers" in refused.value.hint


def test_a_path_with_a_typo_gets_a_suggestion(make_inventory: MakeInventory) -> None:
    path = make_inventory(name="production")
    with pytest.raises(InventoryError) as caught:
        Cluster.load(path.with_name("prodction"))
    assert "production" in caught.value.hint


def test_the_lab_is_the_default_inventory(make_inventory: MakeInventory, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no inventory") as none:
        find_inventory(tmp_path)
    assert "lab up" in none.value.hint
    (tmp_path / "inventory").mkdir()
    make_inventory(name="inventory/one")
    assert find_inventory(tmp_path) == tmp_path / "inventory" / "one"
    make_inventory(name="inventory/two")
    with pytest.raises(InputError, match="inventory/one, inventory/two"):
        find_inventory(tmp_path)
    make_inventory(name="inventory/lab")
    assert find_inventory(tmp_path) == tmp_path / "inventory" / "lab"


def test_folder_of_inventories_is_no_inventory(make_inventory: MakeInventory, tmp_path: Path) -> None:
    path = make_inventory(name="one")
    with pytest.raises(InventoryError, match="is a folder of inventories") as caught:
        Cluster.load(tmp_path)
    assert caught.value.hint == f"name one of them: {path}"
    (tmp_path / "README.md").write_text("Ours.\n", encoding="utf-8")
    with pytest.raises(InventoryError, match="is a folder of inventories"):
        Cluster.load(tmp_path)
    (tmp_path / "group_vars").mkdir()
    assert len(Cluster.load(tmp_path).nodes) == 3, "one cluster, of several folders"


# --- choosing nodes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "names"),
    [
        ("", NODES),
        ("node2", ("node2",)),
        ("node3,node1", ("node1", "node3")),
        ("node3:node1", ("node1", "node3")),
        ("workers", ("node2", "node3")),
        ("node*", NODES),
        ("all", NODES),
        ("workers:!node3", ("node2",)),
        ("!node3", ("node1", "node2")),
        ("workers:&rack1", ("node2",)),
        ("~node[12]", ("node1", "node2")),
        ("workers[0]", ("node2",)),
        ("node*[1:2]", ("node2", "node3")),
        ("@nodes", ("node1", "node3")),
    ],
)
def test_a_limit_selects_nodes(
    cluster: Cluster, limit: str, names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nodes").write_text("node3\nnode1\n")
    monkeypatch.chdir(tmp_path)
    assert cluster.select(limit) == names


@pytest.mark.parametrize(
    ("limit", "hint"), [("nod2", "node2"), ("node1,worker", "workers"), ("qqq", "the nodes are node1")]
)
def test_a_limit_with_a_typo_is_refused_with_a_suggestion(cluster: Cluster, limit: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        cluster.select(limit)
    assert hint in caught.value.hint


@pytest.mark.parametrize("limit", [[], ["node2"], ("node2",), 2])
def test_a_limit_that_is_no_string_is_refused_and_never_means_all_nodes(cluster: Cluster, limit: Any) -> None:
    with pytest.raises(InputError, match=r"limit .* is not a string") as caught:
        cluster.down(limit=limit)
    assert caught.value.hint == "write 'node2,node3', or leave it out for all nodes"


def test_tags_and_released_nodes_of_another_type_are_refused(cluster: Cluster) -> None:
    tags: Any = ["network"]
    with pytest.raises(InputError, match=r"tags \['network'\] is not a string"):
        cluster.up(tags=tags)
    with pytest.raises(InputError, match="release 'node9' is a string, not a list") as caught:
        cluster.plan(release="node9")
    assert caught.value.hint == "release=['node9']"


@pytest.mark.parametrize("limit", ["workers:!workers", "ungrouped", "@missing", "~(", "workers[7]"])
def test_a_limit_that_leaves_nothing(cluster: Cluster, limit: str) -> None:
    with pytest.raises(InputError):
        cluster.select(limit)


@pytest.mark.parametrize(
    "limit",
    [
        "!",
        "&",
        "node1:&",
        ",",
        ":",
        " ",
        "~",
        "!~",
        "~[",
        "!!!",
        "node1[",
        "node1]",
        "!@nodes",
        "@empty",
        "@typo",
    ],
)
def test_a_limit_that_is_none_selects_no_node(
    cluster: Cluster, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nodes").write_text("node3\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "typo").write_text("node1\nnod2\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="--limit"):
        cluster.select(limit)


def test_a_node_is_found_by_name(cluster: Cluster) -> None:
    assert cluster.node("node2").address == "10.0.0.2"
    with pytest.raises(InputError, match="node9"):
        cluster.node("node9")


# --- the plan -------------------------------------------------------------------------------------


def test_plan_marks_new_kept_pinned_and_removed_nodes(make_inventory: MakeInventory) -> None:
    path = make_inventory()
    first = Cluster.load(path).plan()
    assert not first.saved
    assert [(node.node, node.my_ip, node.note) for node in first.nodes] == [
        ("node1", "10.77.0.100", "new"),
        ("node2", "10.77.0.101", "new"),
        ("node3", "10.77.0.102", "new"),
    ]
    assert not (path / "address_plan.cfg").exists()
    assert Cluster.load(path).plan(save=True).saved

    make_inventory("node1", "node3", "node4", hosts={"node4": {"my_ip": "10.77.0.{{ 25 * 2 }}"}})
    cluster = Cluster.load(path)
    second = cluster.plan()
    assert not second.saved
    assert [(node.node, node.my_ip, node.note) for node in second.nodes] == [
        ("node1", "10.77.0.100", "kept"),
        ("node3", "10.77.0.102", "kept"),
        ("node4", "10.77.0.50", "pinned"),
        ("node2", "10.77.0.101", "removed"),
    ]
    was = (path / "address_plan.cfg").read_text(encoding="utf-8")
    with pytest.raises(InventoryError, match="nothing was released") as caught:
        cluster.plan(release=["node9"])
    assert "node9" in str(caught.value.problems[0])
    assert (path / "address_plan.cfg").read_text(encoding="utf-8") == was
    third = Cluster.load(path).plan(release=["node2"])
    assert third.saved
    assert "node2" not in [node.node for node in third.nodes]
    assert "node2" not in (path / "address_plan.cfg").read_text(encoding="utf-8")
    assert Cluster.load(path).plan().saved


def test_no_reservation_outlives_its_subnet(make_inventory: MakeInventory) -> None:
    path = make_inventory()
    Cluster.load(path).plan(save=True)
    make_inventory("node1", "node2", rdm_subnet="10.88.0.0/24", network_replace=True)
    moved = Cluster.load(path).plan(save=True)
    assert [(node.node, node.my_ip, node.note) for node in moved.nodes] == [
        ("node1", "10.88.0.100", "moved"),
        ("node2", "10.88.0.101", "moved"),
    ]


def test_a_misspelt_group_does_not_drop_its_hosts(make_inventory: MakeInventory) -> None:
    path = make_inventory("node1")
    (path / "hosts-2.yml").write_text("worker: {hosts: {node2: {}}}\n", encoding="utf-8")
    with pytest.raises(InventoryError) as caught:
        Cluster.load(path).plan()
    problems = [str(problem) for problem in caught.value.problems]
    assert len(problems) == 1
    assert "node2" in problems[0]
    assert "did you mean workers?" in problems[0]


# --- bare hosts -----------------------------------------------------------------------------------

BARE: dict[str, Any] = {"rdm_runtime": "host", "my_ip": "10.77.0.100"}


@pytest.mark.parametrize(
    ("verb", "instead"),
    [
        ("verify", "rdm-provision train "),
        ("status", "rdm-provision jobs "),
        ("down", "rdm-provision env down "),
        ("exec", "ansible master:workers -i "),
    ],
)
def test_verb_for_containers_names_the_one_for_bare_hosts(
    make_inventory: MakeInventory, verb: str, instead: str
) -> None:
    cluster = Cluster.load(make_inventory("node1", **BARE))
    with pytest.raises(InputError, match=rf"^{verb} is for containers, .*rdm_runtime: host") as caught:
        getattr(cluster, verb)(*([["hostname"]] if verb == "exec" else []))
    assert caught.value.hint.startswith(instead)


@pytest.mark.parametrize("verb", ["env_up", "env_down"])
def test_the_environment_of_a_cluster_of_containers_is_refused_before_anything_is_written(
    make_inventory: MakeInventory, verb: str
) -> None:
    path = make_inventory()
    cluster = Cluster.load(path)
    with pytest.raises(InputError, match=rf"^{verb.replace('_', ' ')} is for bare hosts .*has containers"):
        getattr(cluster, verb)()
    # Nor by the playbook alone, or where only Ansible can tell.
    result = cluster._run(verb.replace("_", "-"), verb, {}).result()
    assert not result.ok
    assert result.changed == ()
    assert "rdm_runtime is container" in str(result.to_json())
    assert not (path / "address_plan.cfg").exists()
    assert not list(path.glob(".rdm/ssh/*"))


# --- runs -----------------------------------------------------------------------------------------


def test_verbs_know_their_playbooks(cluster: Cluster) -> None:
    runs = [cluster.up(), cluster.check(), cluster.verify(), cluster.down(images=True), cluster.status()]
    specs = [run.spec for run in runs]
    assert [spec.playbook for spec in specs] == ["site", "site", "verify", "clean", "status"]
    assert [spec.check for spec in specs] == [False, True, False, False, False]
    assert [spec.exclusive for spec in specs] == [True, False, False, True, False]
    assert specs[3].extra_vars["images_remove"] is True
    assert "verify_all_pairs" not in specs[2].extra_vars
    assert cluster.verify(all_pairs=True).spec.extra_vars["verify_all_pairs"] is True
    assert cluster.slurm_status().spec.verb == "slurm status", "as it is typed: others read it from the lock"
    assert all(spec.extra_vars["rdm_cluster"] == "mine" for spec in specs)


def test_rdma_and_an_all_reduce_have_the_cluster_for_themselves(cluster: Cluster) -> None:
    spec = cluster.verify(rdma=True, collective=True, max_size="64M").spec
    assert spec.exclusive
    assert spec.extra_vars["verify_rdma"] is spec.extra_vars["verify_collective"] is True
    assert spec.extra_vars["verify_collective_max_size"] == "64M"


def test_between_nodes_takes_two_of_them_and_a_size_is_one(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="RDMA is measured between nodes, and this run has only node2"):
        cluster.verify(rdma=True, limit="node2")
    with pytest.raises(
        InputError, match="an all-reduce takes at least two nodes, and this run has only node1"
    ):
        cluster.verify(collective=True, limit="node1")
    for size in ("64", "1K", "1T", "0M", "x"):
        with pytest.raises(InputError, match=f"'{size}' is no size of a tensor") as refused:
            cluster.verify(collective=True, max_size=size)
        assert refused.value.hint == "give one from 1M up, such as 256M or 1G"


def test_a_limit_reaches_the_run(cluster: Cluster) -> None:
    spec = cluster.up(limit="workers", tags="images").spec
    assert (spec.nodes, spec.limit, spec.tags) == (("node2", "node3"), "workers", "images")


def test_exec_wants_a_command_and_a_sound_user(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="no command"):
        cluster.exec([])
    with pytest.raises(InputError, match="user"):
        cluster.exec(["id"], user="{{ x }}")
    with pytest.raises(InputError, match="'id -u' is a string, and exec takes a list") as caught:
        cluster.exec("id -u")
    assert caught.value.hint == "exec(['id', '-u'])"
    assert cluster.exec(["id"], user="1000:100").spec.literal_vars == {"exec_argv": ["id"]}


# --- what nodes say -------------------------------------------------------------------------------


def facts(**docker: Any) -> dict[str, Any]:
    def labels(role: str) -> dict[str, str]:
        return {"rdm.provision.cluster": "mine", "rdm.provision.role": role}

    found: dict[str, Any] = {
        "version": "28.1",
        "containers": [
            {"name": "other", "state": "running", "labels": {}, "networks": {}},
            {
                "name": "rdm",
                "image": "i:1",
                "state": "running",
                "labels": labels("container"),
                "networks": {"ibnet": "10.77.0.100"},
            },
        ],
        "networks": [{"name": "ibnet", "driver": "macvlan", "labels": labels("network")}],
    }
    return {"node": {"accelerator": "cpu", "docker": {**found, **docker}, "docker_error": ""}}


def state(
    reported: dict[str, Any] | None, *, why: str = "", my_ip: str = "10.77.0.100", tmp: Path, **planned: Any
) -> Any:
    # The inventory's value is a template, so it is not the cluster's name.
    cluster = Cluster(tmp, {"master": ("node1",)}, {"node1": {"rdm_cluster": "{{ site }}"}})
    plan = {"cluster": "mine", "nodes": {"node1": {"my_ip": my_ip, "note": "kept"}}, **planned}
    returned = {FACTS_MODULE: {"node1": [reported]}} if reported is not None else {}
    nodes = {"node1": NodeRecap(ok=1, why=why)}
    (found,) = cluster.states(RunResult(verb="status", nodes=nodes, returned=returned, plan=plan))
    return found


def test_a_node_on_which_all_is_well(tmp_path: Path) -> None:
    found = state(facts(), tmp=tmp_path)
    assert found.healthy
    assert (found.container, found.image, found.network) == ("rdm (running)", "i:1", "ibnet (macvlan)")
    assert (found.my_ip, found.container_ip, found.engine) == ("10.77.0.100", "10.77.0.100", "28.1")


def test_a_killed_runs_leftover_is_not_the_container(tmp_path: Path) -> None:
    found = facts()
    containers = found["node"]["docker"]["containers"]
    containers.insert(0, {**containers[1], "name": "rdm.next", "state": "created", "networks": {}})
    assert state(found, tmp=tmp_path).container == "rdm (running)"


def test_differences_that_would_be_refused_are_reported(tmp_path: Path) -> None:
    problem = {"node": "node1", "value": "x", "reason": "is wrong", "hint": "right it"}
    others = [{**problem, "node": "node2"}, {**problem, "node": None, "value": "all"}]
    found = state(facts(), problems=[problem, *others], tmp=tmp_path)
    assert found.remarks == ("x is wrong: right it", "all is wrong: right it")
    assert not found.healthy


def test_remarks_on_what_is_not_as_planned(tmp_path: Path) -> None:
    assert state(facts(), my_ip="10.77.0.9", tmp=tmp_path).remarks == (
        "the container has 10.77.0.100 instead of 10.77.0.9",
    )
    assert "no training container" in state(facts(containers=[]), tmp=tmp_path).remarks
    assert "no container network" in state(facts(networks=[]), tmp=tmp_path).remarks
    sriov = facts()
    sriov["node"]["docker"]["networks"][0]["driver"] = "sriov"
    assert state(sriov, tmp=tmp_path).remarks == ("the SR-IOV plugin is missing",)
    stopped = facts()
    stopped["node"]["docker"]["containers"][1].update(state="exited", networks={})
    assert state(stopped, tmp=tmp_path).remarks == ("the container is exited",)
    stopped["node"]["docker"]["containers"][1]["state"] = "paused"
    assert state(stopped, tmp=tmp_path).remarks == (
        "the container is paused: rdm-provision up, or docker unpause rdm, lets it go on",
    )


RAN = {"container": {"name": "rdm", "state": "running", "image": "i:2"}}


def test_a_container_that_was_checked_and_then_run_is_shown_once(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, {"master": ("node1",)}, {"node1": {}})

    def ran(state: str, image: str) -> dict[str, Any]:
        return {"container": {"name": "rdm", "state": state, "image": image}}

    results = [ran("exited", "i:1"), ran("running", "i:2")]
    result = RunResult(verb="up", nodes={}, returned={CONTAINER_MODULE: {"node1": results}})
    assert cluster.containers(result) == (("node1", "rdm (running)", "i:2", ""),)


@pytest.mark.parametrize(
    ("recap", "returned", "line"),
    [
        (NodeRecap(ok=1), [], ("rdm.old (exited)", "i:1")),
        (NodeRecap(ok=2, changed=1), [RAN], ("rdm (running)", "i:2")),
        (NodeRecap(ok=2, failed=1), [RAN], ("rdm (running)", "i:2")),
        (NodeRecap(ok=1, failed=1), [], ("rdm.old (not known since it failed)", "")),
        (NodeRecap(ok=2, failed=1), [RAN, {"failed": True}], ("rdm.old (not known since it failed)", "")),
        (NodeRecap(ok=1, unreachable=True), [], ("rdm.old (not known since it failed)", "")),
        (NodeRecap(ok=2, unreachable=True), [RAN], ("rdm (not known since it failed)", "")),
    ],
)
def test_latest_report_of_a_container_wins(
    tmp_path: Path, recap: NodeRecap, returned: list[dict[str, Any]], line: tuple[str, str]
) -> None:
    cluster = Cluster(tmp_path, {"master": ("node1",)}, {"node1": {}})
    seen = {"name": "rdm.old", "state": "exited", "image": "i:1"}
    plan = {"nodes": {"node1": {"my_ip": "10.77.0.100", "seen": seen}}}
    returns = {CONTAINER_MODULE: {"node1": returned}} if returned else {}
    result = RunResult(verb="up", nodes={"node1": recap}, returned=returns, plan=plan)
    assert cluster.containers(result) == (("node1", *line, "10.77.0.100"),)


def test_a_node_without_an_engine_or_without_an_answer(tmp_path: Path) -> None:
    without = {"node": {"accelerator": "cpu", "docker": None, "docker_error": "no Docker Engine answers"}}
    assert state(without, tmp=tmp_path).remarks == ("no Docker Engine answers",)
    gone = state(None, why="no route", tmp=tmp_path)
    assert not gone.reachable
    assert gone.remarks == ("no route",)


def test_outputs_of_a_command(cluster: Cluster) -> None:
    nodes = {
        "node1": NodeRecap(ok=1),
        "node2": NodeRecap(failed=1, why="exit code 3"),
        "node3": NodeRecap(why="gone"),
    }
    returned = {
        EXEC_MODULE: {
            "node1": [{"rc": 0, "stdout": "x\n", "stderr": ""}],
            "node2": [{"rc": 3, "stderr": "e\n"}],
        }
    }
    outputs = cluster.outputs(RunResult(verb="exec", nodes=nodes, returned=returned))
    assert [(out.node, out.rc, out.stdout, out.stderr, out.error) for out in outputs] == [
        ("node1", 0, "x\n", "", ""),
        ("node2", 3, "", "e\n", "exit code 3"),
        ("node3", None, "", "", "gone"),
    ]
