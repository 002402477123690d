"""The role network: it replaces a network of the cluster if that is allowed, and never another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.engine import Engine, net
from tests.integration.plays import Played, run_plays

NET = net(3)


def play(directory: Path, engine: Engine, **variables: Any) -> Played:
    """Run the role without preflight."""
    return run_plays(
        directory,
        [{"tasks": [{"name": "Run", "ansible.builtin.include_role": {"name": "rdm.provision.network"}}]}],
        docker_host=f"unix://{engine.socket}",
        network_driver="bridge",
        network_subnet=f"{NET}.0/24",
        **{"network_name": "fabric", "network_gateway": f"{NET}.1", **variables},
    )


def test_a_network_is_created_replaced_and_removed(engine: Engine, tmp_path: Path) -> None:
    for changes in (1, 0):
        played = play(tmp_path, engine)
        assert (played.status, played.changes) == (0, [changes]), played.output
    moved = {"network_gateway": f"{NET}.254"}
    refused = play(tmp_path, engine, **moved)
    assert refused.status != 0
    assert "node1: there is a Docker network fabric with other settings (" in refused.output
    assert "set network_replace: true to replace it, or choose another network_name." in refused.output
    played = play(tmp_path, engine, **moved, network_replace=True)
    assert played.status == 0, played.output
    assert engine.api.get("/networks/fabric")["IPAM"]["Config"][0]["Gateway"] == f"{NET}.254"
    gone = play(tmp_path, engine, network_state="absent")
    assert (gone.status, gone.changes) == (0, [1]), gone.output


def test_networks_of_further_rails_are_created_and_compared(engine: Engine, tmp_path: Path) -> None:
    plan = {"rails": [f"{net(4)}.0/24"], "nodes": {"node1": {"network_present": False}}}
    rails = {"preflight_plan": {**plan, "subnet": f"{NET}.0/24"}, "container_rails": ["a", "b"]}
    found = {"preflight_facts": {"node": {"docker": {"engine": "docker"}}}}
    for variables, changes in ((found, 2), ({}, 0)):
        played = play(tmp_path, engine, **rails, **variables)
        assert (played.status, played.changes) == (0, [changes]), played.output
    network = engine.api.get("/networks/fabric-1")
    assert network["IPAM"]["Config"] == [{"Subnet": f"{net(4)}.0/24", "Gateway": f"{net(4)}.1"}]
    assert network["Labels"] == {"rdm.provision.cluster": "rdm", "rdm.provision.role": "network"}
    gone = play(tmp_path, engine, network_state="absent")
    assert (gone.status, gone.changes) == (0, [1]), gone.output


def test_foreign_network_is_never_replaced(engine: Engine, tmp_path: Path) -> None:
    engine.api.post("/networks/create", {"Name": "theirs", "IPAM": {"Config": [{"Subnet": f"{NET}.0/24"}]}})
    try:
        refused = play(tmp_path, engine, network_name="theirs", network_replace=True)
        assert refused.status != 0
        assert (
            "node1: there is a Docker network theirs that is not ours (it lacks the label" in refused.output
        )
        assert engine.api.get("/networks/theirs")["Labels"] == {}
    finally:
        engine.api.delete("/networks/theirs")
