"""The work of a run on simulated nodes, in one call or in separate tasks; and runs that gathered nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.simulated.node import Node
from tests.simulated_cluster import Cluster

FILES, CONTAINER, STATE, LOCK = (
    f"rdm.provision.{name}" for name in ("node_files", "container", "state_file", "node_lock")
)


def test_only_tagged_parts_of_a_run_are_carried_out(tmp_path: Path) -> None:
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


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster(tmp_path_factory.mktemp("nodes") / "cluster", 3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--start-at-task", "Write the hostfile"), "leave out --start-at-task"),
        (("--skip-tags", "preflight"), "leave out --skip-tags"),
    ],
)
def test_a_run_that_gathered_nothing_is_refused_in_a_sentence(
    bare: Cluster, arguments: tuple[str, str], sentence: str
) -> None:
    refused = bare.playbook("site", *arguments).expect(4)
    assert sentence in " ".join(refused.output.split())
    assert (refused.changed, refused.calls) == ([], {})


def test_serial_is_refused_with_a_sentence(bare: Cluster, tmp_path: Path) -> None:
    play = tmp_path / "serial.yml"
    play.write_text(
        "- hosts: master:workers\n  gather_facts: false\n  become: true\n  serial: 1\n"
        "  roles: [rdm.provision.preflight]\n",
        encoding="utf-8",
    )
    refused = bare.playbook(play).expect(2)
    assert "serial makes this play take 1 of 3 hosts at a time" in " ".join(refused.output.split())
    assert (refused.changed, refused.calls) == ([], {})
