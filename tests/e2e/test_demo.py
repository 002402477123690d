"""`make demo` in a fresh clone, without hardware. Its removal is in test_demo_down.py."""

from __future__ import annotations

import pytest

from tests.e2e.demo import SHORT, Demo


def test_make_demo_shows_a_cluster_that_trains(demo: Demo) -> None:
    for words in (
        "MY_IP",
        "192.169.16.101",
        "rdm (running)",
        "Every container of this run reaches every",
        "Brought .venv/demo/data to n1, n2",
        "loss 10.",
        "┤",
        "finished   4/4",
        "/checkpoints on each node, the newest of iteration 4",
    ):
        assert words in demo.shown
    for command in (
        f"rdm-provision status -i inventory/{demo.name}",
        "rdm-provision exec",
        "rdm-provision lab down",
        f"rdm-provision train -i inventory/{demo.name} --resume demo-",
    ):
        assert command in demo.shown


def test_suggested_commands_of_the_demo_work(demo: Demo) -> None:
    tried = f". .venv/bin/activate && rdm-provision exec -i inventory/{demo.name} -- hostname"
    assert tried.split(" && ")[0] in demo.shown
    assert demo.run("bash", "-c", tried).split() == ["n1", "n1", "n2", "n2"]


@pytest.mark.long
def test_a_second_make_demo_only_trains(demo: Demo) -> None:
    again = demo.make("demo", "NODES=2", SHORT)
    assert "Nothing was changed: the lab runs as requested." in again
    assert "Nothing was changed: the cluster is as the inventory describes it." in again
    assert "Nothing was changed: every node has the data." in again
    assert "finished   4/4" in again
    assert "Setting up" not in again
