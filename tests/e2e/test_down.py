"""Take-down of a cluster, on nodes that also have foreign objects."""

from __future__ import annotations

from tests.e2e.product import NODES, Lab, changed, problems
from tests.printed_hints import follow

THEIRS = """
docker network create theirs
docker run --detach --name theirs --network theirs rdm-lab/cpu:1 sleep infinity
echo notes > /etc/rdm/job/notes
printf '\nTHEIRS=1\n' >> /etc/environment
"""
TAKEN_AWAY = """
docker rm --force theirs
docker network rm theirs
rm -r /etc/rdm
sed -i /^THEIRS=/d /etc/environment
"""


def test_down_removes_only_our_objects_and_a_second_down_nothing(lab: Lab) -> None:
    lab.provisioned()
    lab.on("n1", "sh", "-ec", THEIRS)
    lab.on("n2", "docker", "rename", "rdm", "rdm-old")
    try:
        refused = problems(lab.json("up", expect=2))
        assert changed(follow(refused, "down", lab.json)) == list(NODES)
        for node in NODES:
            containers = lab.on(node, "docker", "ps", "--all", "--format", "{{.Names}}").split()
            networks = lab.on(node, "docker", "network", "ls", "--format", "{{.Name}}").split()
            theirs = ["theirs"] if node == "n1" else []
            assert containers == theirs
            assert sorted(networks) == ["bridge", "host", "none", *theirs]
            assert lab.there(node, "/etc/rdm") == bool(theirs)
            assert "MY_IP" not in lab.on(node, "cat", "/etc/environment", check=False)
            assert lab.images(node) != ""
        # The owner marker says whose the directory is, while it is there.
        left = lab.on("n1", "find", "/etc/rdm", "-type", "f", "-not", "-name", ".*").split()
        assert sorted(left) == ["/etc/rdm/cluster", "/etc/rdm/job/notes"]
        assert "THEIRS=1" in lab.on("n1", "cat", "/etc/environment").splitlines()
        assert (
            lab.on("n1", "docker", "inspect", "--format", "{{.State.Status}}", "theirs").strip() == "running"
        )
    finally:
        lab.on("n1", "sh", "-c", TAKEN_AWAY)
    assert changed(lab.json("down")) == []
    assert (lab.inventory / "address_plan.cfg").exists()
