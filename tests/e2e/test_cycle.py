"""The cycle of a cluster: check, up, use, change. In this order, on one lab. Its end is in test_down.py."""

from __future__ import annotations

import configparser
import json
from collections.abc import Iterator

import pytest

from tests.e2e.product import ADDRESSES, NODES, Lab, changed
from tests.printed_hints import follow
from trainer.tests.waiting import wait_until

# A value that must not reach a shell.
NASTY = 'it\'s a "value" with $(touch /tmp/pwned) `touch /tmp/pwned`; ${HOME} {{ no }} \\ \nand a line'


@pytest.fixture(scope="module")
def nasty(lab: Lab) -> Iterator[str]:
    """Yield a value for the containers' environment that would do harm in a shell."""
    lab.bare()
    words = json.dumps({"NOTE": NASTY.replace("{{ no }}", "{{ '{{ no }}' }}"), "EMPTY": ""})
    file = lab.inventory_text(f"container_env: {words}\n")
    yield NASTY
    file.unlink(missing_ok=True)


def test_lab_status_shows_every_node(lab: Lab) -> None:
    def states() -> set[tuple[str, str, str]]:
        return {(node["state"], node["cable"], node["engine"]) for node in lab.lab("status")["nodes"]}

    nodes = lab.lab("status")["nodes"]
    assert [node["name"] for node in nodes] == list(NODES)
    # Once, each engine and each sshd has only some seconds to answer.
    wait_until("every node is ready", states, lambda found: found == {("running", "plugged", "ready")})
    shown = lab.product.rdm("lab", "status", "--name", lab.name).stdout
    assert all(node["address"] in shown for node in nodes)


def test_check_of_empty_nodes_lists_changes_without_making_them(lab: Lab, nasty: str) -> None:
    result = lab.json("check")
    assert result["ok"]
    assert not result["in_sync"]
    assert changed(result) == list(NODES)
    changes = [change for node in result["nodes"].values() for change in node["changes"]]
    assert {change["phase"] for change in changes} >= {"images", "network", "container"}
    # What one module call writes.
    diff = "".join(change["diff"] for change in changes if change["phase"] == "container")
    for path in ("/etc/rdm/nodes", "/etc/environment", "/etc/rdm/ssh/config", "/etc/rdm/job/hostfile"):
        assert f"+++ {path}" in diff, diff
    assert not (lab.inventory / "address_plan.cfg").exists()
    for node in NODES:
        assert not lab.there(node, "/etc/rdm")
        assert lab.on(node, "docker", "ps", "--all", "--quiet") == ""
        assert lab.images(node) == ""


def test_up_provisions_every_node_and_shows_the_fabric(lab: Lab, nasty: str) -> None:
    reason = lab.json("jobs", expect=1)["nodes"]["n1"]["why"]
    result = follow(reason, "up", lab.json)
    assert result["ok"]
    assert changed(result) == list(NODES)
    assert {name: node["my_ip"] for name, node in result["plan"]["nodes"].items()} == ADDRESSES
    rtt = result["fabric"]["rtt_us"]
    assert all(rtt[a][b] > 0 for a in NODES for b in NODES if a != b)


def test_show_command_prints_a_line_that_works(lab: Lab) -> None:
    line = lab.rdm("verify", "--limit", "n1,n2", "--show-command").stdout.strip()
    assert "ansible-playbook" in line
    shown = lab.product.run("bash", "-c", line).stdout
    assert "n2 " in shown
    assert "n3 " not in shown


def test_address_plan_is_saved_next_to_the_inventory(lab: Lab) -> None:
    file = configparser.ConfigParser(delimiters=["="])
    file.read(lab.inventory / "address_plan.cfg", encoding="utf-8")
    assert dict(file["nodes"]) == ADDRESSES
    plan = lab.json("plan")
    assert plan["saved"]
    assert {node["node"]: (node["my_ip"], node["note"]) for node in plan["nodes"]} == {
        name: (address, "kept") for name, address in ADDRESSES.items()
    }


def test_status_shows_containers_by_node(lab: Lab) -> None:
    shown = [line.split() for line in lab.rdm("status").stdout.splitlines()]
    for node, address in ADDRESSES.items():
        (line,) = [line for line in shown if line[:1] == [node]]
        assert line[1:4] == [address, "rdm", "(running)"]
        assert line[-1] == "ok"


def test_exec_runs_in_every_container_with_the_nodes_name_before_each_line(lab: Lab) -> None:
    """In each container, names of nodes mean their containers."""
    script = 'printenv MY_IP; getent hosts "$@"'
    shown = [
        line.split() for line in lab.rdm("exec", "--", "sh", "-c", script, "sh", *NODES).stdout.splitlines()
    ]
    for node in NODES:
        own, *hosts = [words[1:] for words in shown if words[0] == node]
        assert own == [ADDRESSES[node]]
        assert {(name, address) for address, name, *_ in hosts} == set(ADDRESSES.items())
    assert {words[0] for words in shown} == set(NODES)


def test_exec_uses_no_shell_and_returns_the_exit_code(lab: Lab) -> None:
    argv = ["sh", "-c", 'printf %s "$1"; exit 3', "sh", NASTY]
    result = lab.json("exec", "--limit", "n2", "--", *argv, expect=3)
    assert list(result["nodes"]) == ["n2"]
    assert result["nodes"]["n2"]["stdout"] == NASTY
    assert result["nodes"]["n2"]["rc"] == 3


def test_a_value_of_the_inventory_reaches_no_shell(lab: Lab, nasty: str) -> None:
    (message,) = {warning.partition(": ")[2] for warning in lab.json("plan")["warnings"] if "NOTE" in warning}
    result = follow(message, "exec", lab.json, "--", "printenv", "NOTE")
    assert {out["stdout"] for out in result["nodes"].values()} == {nasty + "\n"}
    for node in NODES:
        assert not lab.there(node, "/tmp/pwned")
        assert lab.on(node, "docker", "exec", "rdm", "find", "/tmp", "-name", "pwned") == ""


def test_containers_reach_each_other_by_ssh_with_host_keys_checked(lab: Lab, nasty: str) -> None:
    script = """
        for target in 192.169.16.102 N3; do
            ssh -o BatchMode=yes $target 'hostname; printenv MY_IP; echo =${EMPTY-unset}'
        done
        ssh -o UserKnownHostsFile=/dev/null -o GlobalKnownHostsFile=/dev/null -o BatchMode=yes n3 hostname
    """
    out = lab.json("exec", "--limit", "n1", "--", "sh", "-c", script, expect=255)["nodes"]["n1"]
    assert out["stdout"].split() == ["n3", ADDRESSES["n3"], "="] * 2, out["stderr"]
    assert "Host key verification failed" in out["stderr"]
    own = {lab.on(node, "cat", "/etc/rdm/ssh/ssh_host_ed25519_key") for node in NODES}
    assert len(own) == len(NODES), "nodes share a host key"


def test_a_changed_variable_is_the_work_of_its_role_alone(lab: Lab, nasty: str) -> None:
    (lab.inventory / "group_vars" / "all.yml").unlink()
    result = lab.json("up")
    assert result["work"].keys() == set(NODES)
    assert [list(roles) for roles in result["work"].values()] == [["container"]] * 3
    assert changed(result) == list(NODES)
    assert "NOTE=" not in lab.container("n2", "{{.Config.Env}}")
    assert lab.json("check")["work"] == {}


def test_no_training_container_is_privileged(lab: Lab) -> None:
    template = "{{.HostConfig.Privileged}} {{.HostConfig.CapAdd}} {{.HostConfig.SecurityOpt}}"
    expected = ["false [] [no-new-privileges label=disable]"] * 3
    assert [lab.container(node, template) for node in NODES] == expected
    # The node's users cannot reach a setuid program that the container's root leaves in its jobs.
    assert lab.on("n1", "stat", "--format", "%a %U", "/var/lib/rdm").split() == ["700", "root"]


def test_no_secret_is_readable_by_others_or_in_a_record(lab: Lab) -> None:
    keys = [(lab.inventory / ".rdm" / "ssh" / name).read_text("utf-8") for name in ("id_ed25519", "host_ca")]
    body, authority = (key.splitlines()[4] for key in keys)
    readable = lab.on("n1", "find", "/etc/rdm", "-type", "f", "-perm", "/077").split()
    assert not any(body in lab.on("n1", "cat", path) for path in readable)
    assert body in lab.on("n1", "cat", "/etc/rdm/ssh/id_ed25519")
    assert lab.on("n1", "grep", "-rlF", authority, "/etc/rdm", check=False) == "", "a node has it"
    records = [path for path in (lab.inventory / ".rdm" / "runs").rglob("*") if path.is_file()]
    assert records
    assert [path for path in records if body in path.read_text(encoding="utf-8", errors="replace")] == []
