"""The end of a cluster: one node, then the others. In this order, on one lab."""

from __future__ import annotations

from tests.e2e.product import NODES, Lab, changed


def test_down_of_one_node_leaves_the_others_alone(lab: Lab) -> None:
    lab.json("up")
    result = lab.json("down", "--limit", "n3")
    assert list(result["nodes"]) == ["n3"]
    assert [lab.container(node) for node in NODES] == ["running", "running", ""]
    assert not lab.there("n3", "/etc/rdm")


def test_the_receipt_has_gone_with_the_node(lab: Lab) -> None:
    assert list(lab.json("up")["work"]) == ["n3"]


def test_down_removes_what_is_ours_and_a_second_down_nothing(lab: Lab) -> None:
    # `up` would be refused, and says how to go on: by this.
    lab.on("n2", "docker", "rename", "rdm", "rdm-old")
    assert changed(lab.json("down")) == list(NODES)
    for node in NODES:
        assert lab.on(node, "docker", "ps", "--all", "--quiet") == ""
        networks = lab.on(node, "docker", "network", "ls", "--format", "{{.Name}}").split()
        assert sorted(networks) == ["bridge", "host", "none"]
        assert not lab.there(node, "/etc/rdm")
        assert "MY_IP" not in lab.on(node, "cat", "/etc/environment", check=False)
        assert lab.images(node) != ""
    assert changed(lab.json("down")) == []
    assert (lab.inventory / "address_plan.cfg").exists()
