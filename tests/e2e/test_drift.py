"""Manual changes are found by one check, named with the reason, and repaired; nothing else is changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.product import ADDRESSES, NODES, Lab, changed

# Each: the node, the change, what the check reports, and in which phase.
Plant = tuple[str, str, str, str]
HELD: list[Plant] = [
    ("n1", "echo stray >> /etc/rdm/nodes", "/etc/rdm/nodes has changed", "my_ip"),
    ("n1", "chmod 666 /etc/rdm/env", "/etc/rdm/env has changed", "my_ip"),
    ("n1", "rm /etc/rdm/job/hostfile", "/etc/rdm/job/hostfile is missing", "hostfile"),
    ("n1", "chmod 644 /etc/rdm/ssh/id_ed25519", "/etc/rdm/ssh/id_ed25519 has changed", "container"),
    (
        "n1",
        "docker update --restart=no --cpus=1 rdm",
        "the container rdm (limits and devices) has changed",
        "container",
    ),
    ("n2", "sed -i /MY_IP/d /etc/environment", "MY_IP in /etc/environment", "my_ip"),
    ("n2", "echo no >> /etc/rdm/ssh/config", "/etc/rdm/ssh/config has changed", "container"),
    ("n2", "chown 1 /etc/rdm/ssh/id_ed25519", "/etc/rdm/ssh/id_ed25519 has changed", "container"),
    ("n2", "chmod 700 /etc/rdm/job", "/etc/rdm/job has changed", "hostfile"),
    (
        "n2",
        "docker exec rdm sh -c 'grep -v n3 /etc/hosts > /tmp/hosts; cat /tmp/hosts > /etc/hosts'",
        "the container rdm (names of nodes) has changed",
        "container",
    ),
    (
        "n3",
        "docker commit rdm stray:1; docker tag stray:1 rdm-lab/cpu:1",
        "the image rdm-lab/cpu:1 has changed",
        "images",
    ),
    (
        "n3",
        "docker network create --driver bridge other && docker network connect other rdm",
        "the container rdm (networks) has changed",
        "container",
    ),
]
GONE: list[Plant] = [
    ("n1", "docker stop -t 1 rdm", "the container rdm is exited, not running", "container"),
    ("n2", "docker pause rdm", "the container rdm is paused, not running", "container"),
    ("n3", "docker rm -f rdm", "the container rdm is missing", "container"),
    ("n3", "docker network rm ibnet", "the network ibnet is missing", "network"),
    ("n3", "docker rmi -f rdm-lab/cpu:1", "the image rdm-lab/cpu:1 is missing", "images"),
]
CLEAN_UP = "docker network disconnect -f other rdm; docker network rm other; docker rmi -f stray:1"


@pytest.fixture(scope="module")
def right(lab: Lab) -> Iterator[Lab]:
    """The lab's nodes as they should be."""
    lab.provisioned()
    yield lab
    for node in NODES:
        lab.on(node, "sh", "-c", CLEAN_UP, check=False)


def reasons(result: Any, node: str, phase: str) -> list[str]:
    found: list[str] = result["work"].get(node, {}).get(phase, [])
    return found


def done(result: Any, phase: str = "") -> set[tuple[str, str, str]]:
    """Return what a run has changed on which node, or would have."""
    return {
        (name, change["phase"], change["task"])
        for name, node in result["nodes"].items()
        for change in node["changes"]
        if phase in ("", change["phase"])
    }


def repaired(right: Lab, plants: list[Plant], *arguments: str) -> Any:
    """Make changes by hand, and let a run repair what a check has found; return the run's result."""
    for node, script, _, _ in plants:
        right.on(node, "sh", "-c", script)
    predicted = right.json("check", "--exit-code", *arguments, expect=1)
    result = right.json("up", *arguments)
    # Two roles that are responsible for the same change both predict it, and the first one makes it.
    assert done(result) <= done(predicted)
    assert done(result, "container") == done(predicted, "container")
    assert changed(result) == changed(predicted)
    for node, _, sentence, phase in plants:
        assert any(reason.startswith(sentence) for reason in reasons(result, node, phase)), (
            node,
            result["work"],
        )
    assert [right.container(node) for node in NODES] == ["running"] * 3
    return result


def test_changes_of_nodes_and_containers_are_found_and_repaired(right: Lab) -> None:
    """Also an older export, on request, and a digest of another version, which is only checked."""
    right.on("n2", "sh", "-c", "echo 'export MY_IP=10.9.9.9' >> /home/rdm/.bashrc")
    right.on("n3", "sed", "-i", r's/"hostfile": "[0-9a-f-]*"/"hostfile": "0"/', "/etc/rdm/state.json")
    shell = ("n2", "su", "-", "rdm", "-c", "bash -ic 'printenv MY_IP'")
    assert right.on(*shell).split() == ["10.9.9.9"]
    result = repaired(right, HELD, "-e", "my_ip_repair_strays=true")
    assert any("sets MY_IP to 10.9.9.9, which wins" in reason for reason in reasons(result, "n2", "my_ip"))
    assert right.on(*shell).split() == [ADDRESSES["n2"]]
    assert reasons(result, "n3", "hostfile")
    assert {phase for node, phase, _ in done(result) if node == "n3"} == {"images", "container"}
    assert right.on("n2", "stat", "--format", "%U", "/etc/rdm/ssh/id_ed25519").strip() == "root"


def test_missing_objects_are_found_and_repaired(right: Lab) -> None:
    result = repaired(right, GONE)
    # The other value of my_ip_repair_strays lets my_ip check the nodes, and changes none.
    assert {phase for _, phase, _ in done(result)} == {"images", "network", "container"}


def test_a_recheck_of_repaired_nodes_finds_nothing(right: Lab) -> None:
    result = right.json("up", "--recheck")
    assert {node: set(roles) for node, roles in result["work"].items()} == {
        node: {"docker_engine", "images", "network", "my_ip", "container", "hostfile"} for node in NODES
    }
    assert changed(result) == []


def test_a_state_file_is_only_for_its_owner(right: Lab) -> None:
    assert right.on("n1", "stat", "--format", "%a %U", "/etc/rdm/state.json").split() == ["600", "root"]


def test_parts_are_removed_once_and_restored_on_nodes_that_do_not_fail(right: Lab) -> None:
    started = [right.container(node, "{{.State.StartedAt}}") for node in NODES]
    files = {"hostfile": "/etc/rdm/job/hostfile", "my_ip": "/etc/rdm/nodes"}
    assert all(right.there("n2", path) for path in files.values())
    absent = ("-e", "hostfile_state=absent", "-e", "my_ip_state=absent")
    result = right.json("up", *absent)
    assert changed(result) == list(NODES)
    assert {phase for _, phase, _ in done(result)} == set(files)
    assert not any(right.there("n2", path) for path in files.values())
    again = right.json("check", "--exit-code", *absent)
    assert (again["in_sync"], again["work"]) == (True, {}), again["nodes"]

    right.on("n2", "mkdir", "/etc/rdm/nodes")
    try:
        result = right.json("up", expect=1)
        assert result["failed"] == ["n2"]
        assert changed(result) == ["n1", "n3"]
        for node in ("n1", "n3"):
            assert {phase for name, phase, _ in done(result) if name == node} == set(files)
            assert all(right.there(node, path) for path in files.values())
        assert result["fabric"] is not None
    finally:
        right.on("n2", "rm", "-rf", "/etc/rdm/nodes")
    result = right.json("up")
    assert changed(result) == ["n2"]
    assert {phase for _, phase, _ in done(result)} == set(files)
    assert [right.container(node, "{{.State.StartedAt}}") for node in NODES] == started


def playbook(right: Lab, name: str, *arguments: str) -> tuple[dict[str, str], dict[str, bool]]:
    """Run ``ansible-playbook`` as its user, with a strategy that is not ours.

    Returns:
        Task -> its output, and node -> whether the run has changed something there, or would have.
    """
    run = ["ansible-playbook", name, "--inventory", str(right.inventory), *arguments]
    shown = right.product.run(*run, ANSIBLE_STRATEGY="free").stdout
    # Whatever the strategy is set to, the plan is made once.
    assert shown.count("TASK [rdm.provision.preflight : Check the nodes and write the plan]") == 1
    tasks = dict(text.split("]", 1) for text in shown.split("TASK [rdm.provision.")[1:])
    recap = {line.split()[0]: line for line in shown.splitlines() if "unreachable=" in line}
    assert all("unreachable=0" in line and "failed=0" in line for line in recap.values())
    return tasks, {node: "changed=0" not in line for node, line in recap.items()}


def standing(right: Lab) -> list[str]:
    """Return each node's files with owners, modes and times, its containers, networks and images."""
    ours = (
        "find /etc/rdm -printf '%p %u %m %s %T@\\n' | sort; grep MY_IP /etc/environment;"
        " docker ps --all --no-trunc --format '{{.ID}} {{.State}}'; docker network ls --no-trunc --quiet;"
        " docker images --no-trunc --format '{{.ID}} {{.Repository}}:{{.Tag}}'"
    )
    return [right.on(node, "sh", "-c", ours) for node in NODES]


def test_ansibles_own_options_work_also_for_an_importing_playbook_with_variables(right: Lab) -> None:
    hostfile = right.on("n1", "cat", "/etc/rdm/job/hostfile").splitlines()
    right.on("n1", "rm", "/etc/rdm/job/hostfile")
    right.on("n2", "sh", "-c", "echo stray >> /etc/rdm/nodes")
    right.on("n3", "docker", "rm", "--force", "rdm")
    before = standing(right)

    tasks, touched = playbook(right, "rdm.provision.site", "--check", "--diff")
    assert touched == dict.fromkeys(NODES, True)
    shown = tasks["hostfile : Write the hostfile"]
    assert {"changed: [n1]", *(f"+{line}" for line in hostfile)} <= set(shown.splitlines())
    shown = tasks["my_ip : Write MY_IP and the address map"]
    assert {"changed: [n2]", "-stray"} <= set(shown.splitlines())
    shown = tasks["container : Run the container"]
    assert "changed: [n3]" in shown
    assert '-    "exists": false' in shown
    assert standing(right) == before

    play = "mine.yml"
    (right.product.directory / play).write_text(
        "- import_playbook: rdm.provision.site\n  vars: {container_env: {NOTE: from the playbook}}\n",
        encoding="utf-8",
    )
    _, touched = playbook(right, play, "--limit", "n1,n2", "--forks", "1")
    assert touched == {"n1": True, "n2": True}
    assert "stray" not in right.on("n2", "cat", "/etc/rdm/nodes")
    assert right.on("n1", "cat", "/etc/rdm/job/hostfile").splitlines() == hostfile
    assert standing(right)[2] == before[2]

    _, touched = playbook(right, play, "--skip-tags", "verify")
    assert touched == {"n1": False, "n2": False, "n3": True}
    assert ["NOTE=from the playbook" in right.container(node, "{{.Config.Env}}") for node in NODES] == [
        True
    ] * 3
    assert right.container("n3") == "running"
