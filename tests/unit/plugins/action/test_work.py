"""What a run writes in the container's call on simulated nodes, and what it writes in separate tasks."""

from __future__ import annotations

from pathlib import Path

from benchmarks.simulated.node import Node
from tests.simulated_cluster import Cluster

FILES, CONTAINER, STATE, LOCK = (
    f"rdm.provision.{name}" for name in ("node_files", "container", "state_file", "node_lock")
)


def test_only_the_parts_of_a_run_that_tags_choose_are_done(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster", 2)

    def kept() -> list[bool]:
        return ["state_file" in Node(cluster.state, name).state for name in cluster.nodes]

    chosen = cluster.playbook("site", "--tags", "my_ip,hostfile").expect(0)
    assert (chosen.changed, chosen.calls[FILES], chosen.calls[CONTAINER]) == (cluster.nodes, 4, 0)
    rest = cluster.playbook("site", "--skip-tags", "hostfile").expect(0)
    assert (rest.changed, rest.calls[FILES], rest.calls[CONTAINER]) == (cluster.nodes, 2, 2)
    assert kept() == [False, False]
    # Otherwise the call that writes the state file releases the node.
    assert [run.calls[LOCK] for run in (chosen, rest)] == [2, 2]

    whole = cluster.playbook().expect(0)
    assert (whole.changed, whole.calls[FILES], whole.calls[STATE], whole.calls[CONTAINER]) == (
        [],
        0,
        0,
        2,
    )
    assert (kept(), whole.calls[LOCK]) == ([True, True], 0)
    cluster.remove_container("n2")
    checked = cluster.playbook("site", "--check").expect(0)
    assert (checked.changed, checked.calls[CONTAINER]) == (["n2"], 1)
    assert cluster.playbook().expect(0).changed == ["n2"]


def test_a_line_of_others_that_sets_another_address_is_work_on_request(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster", 2)
    cluster.playbook().expect(0)
    stray = {"file": "/home/u/.bashrc", "line": 2, "value": "1.1.1.1", "shells": ["zsh"], "plain": True}
    node = Node(cluster.state, "n2")
    node.state["strays"] = [stray]
    node.state["state_file"]["inputs"] = None
    node.save()
    assert cluster.playbook().expect(0).calls[FILES] == 0
    repaired = cluster.playbook("site", "-e", "my_ip_repair_strays=true").expect(0)
    assert (repaired.calls[FILES], repaired.calls[CONTAINER]) == (2, 0)
