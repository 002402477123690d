"""Which archives go from node to node, and what of them each node lacks."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.action import image_distribution
from ansible_collections.rdm.provision.plugins.action.image_distribution import ActionModule
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import NOTED
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import image_transfer, peer_transfer
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import PreconditionFailed

from tests.unit.plugins.peer_nodes import ALL, NODES, Nodes


def found(name: str, load: bool = True, **more: Any) -> dict[str, Any]:
    """Return what an inspection found of an image in the archive all.tar."""
    return {"item": {"name": name, "path": "all.tar"}, "load": load, "size": 3, **more}


def test_what_one_of_several_images_of_an_archive_needs_is_fetched() -> None:
    both = [found("a:1", present_members=["base", "a"]), found("b:1", present_members=["base", "b"])]
    inspections = {
        "n1": {"results": both},
        "n2": {"results": [found("a:1", present_members=["base", "a"]), found("b:1", load=False)]},
        "n3": {"results": [found("a:1", load=False)]},
        "n4": {},
    }
    variables = {
        "ansible_play_hosts": list(inspections),
        "hostvars": {name: {"images_inspection": one} for name, one in inspections.items()},
    }
    action: Any = ActionModule.__new__(ActionModule)
    ((item, hosts),) = action._archives(variables)
    assert item["path"] == "all.tar"
    present = {name: one["present_members"] for name, one in hosts.items()}
    assert present == {"n1": ["base"], "n2": ["base", "a"]}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Four nodes that lack an image of a registry; the first can pull it."""
    made = Nodes()
    made.answers["compared"] = lambda _name: {"changed": True}
    made.answers["absent"] = lambda _name: {}
    monkeypatch.setattr(image_distribution, "RemoteExecutor", lambda *_arguments: made)
    monkeypatch.setattr(peer_transfer, "_POLL_S", 0.01)
    return made


def decide(nodes: Nodes, distribution: str = "peers", check_mode: bool = False) -> dict[str, Any]:
    """Return what the action returns for an image that all nodes lack."""
    action: Any = ActionModule.__new__(ActionModule)
    action._task = SimpleNamespace(check_mode=check_mode)
    action._display = SimpleNamespace(
        display=lambda text, **_given: nodes.shown.append(text), warning=nodes.warnings.append
    )
    lacking = {"architecture": "x86_64", "images": [{"name": "training:1", "source": "registry"}]}
    variables = {name: {"__images_lacking": lacking} for name in NODES}
    options = {"registry": True, "distribution": distribution, "network": "", "port": 7077, "bandwidth": 0.0}
    options |= {"cluster": "c", "cache_dir": "/cache"}
    hostvars = HostVariables(variables)
    result: dict[str, Any] = action.decide(
        options, {"ansible_play_hosts": NODES, "hostvars": hostvars, "ansible_forks": 5}
    )
    return result


class HostVariables(dict[str, Any]):
    """Ansible's `hostvars`, whose unevaluated variables are these."""

    raw_get = dict.__getitem__


def test_the_first_node_pulls_and_saves_an_image_for_the_others(nodes: Nodes) -> None:
    result = decide(nodes)
    assert nodes.calls[0] == ("n1", {"name": "training:1", "pull": "not_present"})
    (name, source) = nodes.calls[1]
    assert (name, source["state"], source["image"]) == ("n1", "source", "training:1")
    assert "path" not in source
    stopped = {name: given.get("image") for name, given in nodes.calls if given.get("state") == "stopped"}
    assert stopped == {"n1": "training:1", "n2": None, "n3": None, "n4": None}
    assert result["pulled"] == {"n1": ["training:1"]}
    assert result["nodes"] == {name: {"training:1": {"copy": f"/cache/{name}.tar"}} for name in NODES[1:]}
    assert "training:1" in result["indexes"]
    assert nodes.shown[:2] == [
        "node to node: training:1: n1 pulls it",
        "node to node: training:1: n1 saves it",
    ]
    assert not nodes.warnings


def test_each_node_compares_an_image_with_its_engine_before_it_fetches(nodes: Nodes) -> None:
    decide(nodes)
    indexes = {name: given.get("index") for name, given in nodes.calls if given.get("state") == "joined"}
    assert indexes == {name: {"size": 3} for name in NODES[1:]}


def test_image_that_its_source_got_meanwhile_is_no_change(nodes: Nodes) -> None:
    nodes.answers["compared"] = lambda _name: {"changed": False}
    assert decide(nodes)["pulled"] == {}


def test_each_node_pulls_an_image_that_the_first_cannot_pull(nodes: Nodes) -> None:
    message = "Error pulling training:1 - manifest for training:1 not found"
    nodes.answers["compared"] = lambda _name: {"failed": True, "msg": message}
    result = decide(nodes)
    assert len(nodes.calls) == 1
    assert (result["nodes"], result["pulled"]) == ({}, {})
    (warning,) = nodes.warnings
    why = "registry docker.io has no training:1 ("
    assert warning.startswith(f"training:1 is pulled by each node, since n1 could not pull it: {why}")


def test_each_node_pulls_an_image_that_the_first_cannot_save(nodes: Nodes) -> None:
    nodes.answers["source"] = lambda _name: {"problem": "its archive needs 2 GB"}
    result = decide(nodes)
    assert (result["nodes"], result["pulled"]) == ({}, {"n1": ["training:1"]})
    assert nodes.warnings == [
        "training:1 is pulled by each node, since n1 cannot serve it: its archive needs 2 GB"
    ]


def test_node_without_the_image_pulls_it_and_keeps_no_partial_copy(nodes: Nodes) -> None:
    nodes.answers["stopped"] = lambda name: {"complete": name != "n3", "path": f"/cache/{name}.tar"}
    assert set(decide(nodes)["nodes"]) == {"n2", "n4"}
    assert nodes.warnings == ["n3 pulls it: training:1 did not reach n3, which has not got all of it"]
    for ending in ("", NOTED):
        assert ("n3", {"path": f"/cache/n3.tar{ending}", "state": "absent"}) in nodes.calls


@pytest.mark.parametrize(
    "given", [{"check_mode": True}, {"distribution": "direct"}, {"distribution": "auto"}]
)
def test_each_node_pulls_an_image_unless_peers_are_chosen(nodes: Nodes, given: dict[str, Any]) -> None:
    assert decide(nodes, **given) == {"nodes": {}, "indexes": {}, "sent": {}, "pulled": {}}
    assert not nodes.calls


def decide_archives(nodes: Nodes, distribution: str, hostvars: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the action returns for the archives that nodes have inspected."""
    action: Any = ActionModule.__new__(ActionModule)
    action._task = SimpleNamespace(check_mode=False)
    action._display = SimpleNamespace(display=lambda _text, **_given: None, warning=nodes.warnings.append)
    options = {"registry": False, "distribution": distribution, "network": "", "port": 7077}
    options |= {"bandwidth": 0.0, "cluster": "c", "cache_dir": "/cache"}
    variables = {"ansible_play_hosts": list(hostvars), "hostvars": hostvars, "ansible_forks": 5}
    result: dict[str, Any] = action.decide(options, variables)
    return result


@pytest.mark.parametrize(
    ("distribution", "remote_src", "forgets"),
    [("auto", False, True), ("peers", True, True), ("auto", True, False), ("direct", False, False)],
)
def test_a_node_that_alone_lacks_an_archive_keeps_nothing_of_an_earlier_transfer(
    nodes: Nodes, distribution: str, remote_src: bool, forgets: bool
) -> None:
    item = {"name": "a:1", "path": "/a.tar", "remote_src": remote_src}
    lacking = {"results": [{"item": item, "load": True, "size": 1 << 30}]}
    hostvars = {"n1": {}, "n3": {"images_inspection": lacking}}
    assert decide_archives(nodes, distribution, hostvars)["nodes"] == {}
    assert [(name, given["state"]) for name, given in nodes.calls] == [("n3", "absent")] * forgets


@pytest.mark.parametrize(
    ("kinds", "states"),
    [
        (["nfs4"] * 4, ["source", *["joined"] * 3]),
        (["nfs4"] * 3, ["source", *["joined"] * 2]),
        (["nfs4"] * 2, ["absent"] * 2),
        (["nfs4", "nfs4", "nfs4", "xfs"], []),
        (["xfs"] * 4, []),
    ],
)
def test_one_node_reads_an_archive_of_a_file_server_for_many(
    nodes: Nodes, kinds: list[str], states: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_transfer, "FEWEST_READERS", 3)
    item = {"name": "a:1", "path": "/shared/a.tar"}
    storage = {"images": ["sha256:1"], "cache_file_system": "xfs", "cache_free": 1 << 40}
    archive = {"item": item, "load": True, "size": 1 << 30, "unpacked": 1 << 30}
    hostvars = {
        name: {"images_inspection": {"results": [{**archive, "storage": {**storage, "file_system": kind}}]}}
        for name, kind in zip(NODES, kinds, strict=False)
    }
    nodes.answers["reported"] = lambda _name: {"nodes": dict.fromkeys(list(hostvars)[1:], ALL), "sent": 3}
    result = decide_archives(nodes, "auto", hostvars)
    called = [state for state in nodes.states() if state in ("source", "joined", "absent")]
    assert called == states
    # The source loads the archive from where it is.
    assert sorted(result["nodes"]) == NODES[1 : 1 + states.count("joined")]
    assert not nodes.warnings


@pytest.mark.parametrize("distribution", ["auto", "peers"])
def test_an_archive_with_other_images_on_a_node_goes_to_no_other(
    nodes: Nodes, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_transfer, "FEWEST_READERS", 3)
    item = {"name": "a:1", "path": "/shared/a.tar"}
    storage = {"file_system": "nfs4", "cache_file_system": "xfs", "cache_free": 1 << 40}
    archive = {"item": item, "load": True, "size": 1 << 30, "unpacked": 1 << 30}
    hostvars = {
        name: {"images_inspection": {"results": [{**archive, "storage": {**storage, "images": [image]}}]}}
        for name, image in zip(NODES, ["sha256:1", "sha256:2", "sha256:1", "sha256:3"], strict=True)
    }
    why = "/shared/a.tar has other images on n2, n4 than on n1"
    if distribution == "peers":
        with pytest.raises(PreconditionFailed, match=f"before an archive was loaded, (?s:.*){why}"):
            decide_archives(nodes, distribution, hostvars)
        assert not nodes.calls
    else:
        assert decide_archives(nodes, distribution, hostvars)["nodes"] == {}
        assert nodes.warnings == [f"{why}: each node reads its own"]
        assert set(nodes.states()) == {"absent"}
