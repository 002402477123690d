"""The transfer of large data files, to nodes that do not answer."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible import constants
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.rdm.provision.plugins.action import data_distribution
from ansible_collections.rdm.provision.plugins.action.data_distribution import ActionModule
from ansible_collections.rdm.provision.plugins.action.job_data import others
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import NOTED
from ansible_collections.rdm.provision.plugins.modules.job_data import compare
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import peer_transfer
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import PreconditionFailed

from tests.unit.plugins.peer_nodes import ALL, COPY, NODES, Nodes


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    made = Nodes()
    made.answers["compared"] = lambda name: {"needed": ["sets/large"] if name != "n4" else []}
    made.answers["absent"] = lambda _name: {}
    monkeypatch.setattr(data_distribution, "RemoteExecutor", lambda *_arguments: made)
    monkeypatch.setattr(data_distribution, "SMALLEST", 1000)
    monkeypatch.setattr(peer_transfer, "_POLL_S", 0.01)
    return made


def decide(nodes: Nodes, source: Path, check_mode: bool = False, **given: Any) -> dict[str, Any]:
    """Return what the action returns for four nodes."""
    display = SimpleNamespace(display=lambda *_a, **_k: None, warning=nodes.warnings.append)
    action: Any = SimpleNamespace(_display=display, _task=SimpleNamespace(check_mode=check_mode))
    for name in ("_bring", "_from_nodes", "_send"):
        setattr(action, name, getattr(ActionModule, name).__get__(action))
    options: dict[str, Any] = {
        "source": str(source),
        "directories": dict.fromkeys(NODES, "/jobs"),
    }
    options |= {
        "from_nodes": [],
        "folder": "data",
        "distribution": "peers",
        "network": "",
        "port": 7077,
        "bandwidth": 0.0,
        "cluster": "c",
        "cache_dir": str(source),
    }
    variables = {"ansible_forks": 5, "inventory_hostname": "n1", "groups": {"all": NODES}}
    return ActionModule.decide(action, options | given, variables)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "data" / "sets").mkdir(parents=True)
    (tmp_path / "data" / "sets" / "large").write_bytes(bytes(1000))
    (tmp_path / "data" / "small").write_bytes(bytes(999))
    return tmp_path / "data"


def test_a_large_file_goes_from_node_to_node_to_those_that_lack_it(nodes: Nodes, source: Path) -> None:
    result = decide(nodes, source)
    expected = {name: {"sets/large": f"/cache/{name}.tar"} for name in ("n2", "n3")}
    assert result["nodes"] == {"n1": {"sets/large": COPY}, **expected}
    compared = [arguments for _name, arguments in nodes.calls if "state" not in arguments]
    assert len(compared) == 4
    assert all(one["sizes"] == {"sets/large": 1000} and one["by_size"] for one in compared), "none is read"
    assert not nodes.warnings


def test_a_file_that_was_read_for_its_pieces_is_not_read_for_its_digest(
    nodes: Nodes, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(3_000_000)
    (source / "sets" / "large").write_bytes(data)
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    decide(nodes, source)
    (source / "sets" / "large").unlink()
    monkeypatch.chdir(source)
    own = {"sets/large": hashlib.sha256(data).hexdigest()}
    assert list(others(Path(), own)) == []
    assert list(others(Path(), {"sets/large": "another"})) == ["sets/large"]


def test_node_without_the_file_is_named_and_keeps_no_partial_copy(nodes: Nodes, source: Path) -> None:
    def break_off() -> None:
        raise OSError("no space left")

    nodes.send = break_off
    nodes.answers["stopped"] = lambda name: {"complete": False, "path": f"/cache/{name}"}
    assert decide(nodes, source)["nodes"] == {}
    why = f"{source / 'sets/large'} did not reach n1: the copy to it broke off: no space left"
    assert f"n1 gets it directly: {why}" in nodes.warnings
    for name, left in {"n1": COPY, "n2": "/cache/n2", "n3": "/cache/n3"}.items():
        for ending in ("", NOTED):
            assert (name, {"path": left + ending, "state": "absent"}) in nodes.calls


def test_a_node_that_alone_lacks_a_file_keeps_nothing_of_an_earlier_transfer(
    nodes: Nodes, source: Path
) -> None:
    nodes.answers["compared"] = lambda name: {"needed": ["sets/large"] if name == "n3" else []}
    assert decide(nodes, source) == {"nodes": {}, "sent": {}}
    assert [(name, given["state"]) for name, given in nodes.calls if "state" in given] == [("n3", "absent")]


@pytest.mark.parametrize(
    "given",
    [{"check_mode": True}, {"directories": dict.fromkeys(NODES[:1], "/jobs")}],
)
def test_no_node_is_called_for_small_transfers(nodes: Nodes, source: Path, given: Any) -> None:
    assert decide(nodes, source, **given) == {"nodes": {}, "sent": {}}
    (source / "sets" / "large").write_bytes(b"small now")
    assert decide(nodes, source) == {"nodes": {}, "sent": {}}
    assert not nodes.calls


def test_wrong_variables_are_refused_before_anything_is_sent(nodes: Nodes, source: Path) -> None:
    wrong: dict[str, Any] = {"distribution": "per", "network": "10.1", "port": 99999, "bandwidth": -1.0}
    with pytest.raises(PreconditionFailed) as refused:
        decide(nodes, source, **wrong)
    values = [problem.value for problem in refused.value.problems]
    assert values == [
        "images_distribution",
        "images_network 10.1",
        "images_port 99999",
        "images_bandwidth -1",
    ]
    assert not nodes.calls


def test_files_go_from_node_to_node_only_if_chosen(nodes: Nodes, source: Path) -> None:
    assert decide(nodes, source, distribution="auto") == {"nodes": {}, "sent": {}}
    assert not nodes.calls


SHARDS: dict[str, dict[str, int]] = {"n1": {"a": 3}, "n2": {"b": 4}}
SOURCE = Path("/jobs/gpt/checkpoints")
FROM: dict[str, Any] = {"from_nodes": ["n1", "n2"], "distribution": "auto", "cache_dir": ""}


@pytest.fixture
def shards(nodes: Nodes) -> Nodes:
    """Nodes of which two have a shard each, and all lack both at the destination."""
    nodes.answers["listed"] = lambda name: {"sizes": SHARDS[name]}
    nodes.answers["compared"] = lambda _name: {"needed": ["a", "b"], "digests": {}}
    nodes.answers["reported"] = lambda _name: {"nodes": dict.fromkeys(NODES, ALL), "sent": 3}
    return nodes


def test_each_shard_goes_from_the_node_that_has_it_to_all_others(shards: Nodes) -> None:
    result = decide(shards, SOURCE, **FROM)
    a, b = {"a": [0, 3]}, {"b": [0, 4]}
    assert {name: (one["own"], one["copies"]) for name, one in result["nodes"].items()} == {
        "n1": (a, {"/cache/n1.tar": b}),
        "n2": (b, {"/cache/n2.tar": a}),
        **{name: ({}, {f"/cache/{name}.tar": b}) for name in ("n3", "n4")},
    }
    sources = {name: one["files"] for name, one in shards.calls if one.get("state") == "source"}
    assert sources == SHARDS
    assert not [
        name for name, one in shards.calls if one.get("directory") == "/" and not one.get("listed")
    ], "hashed"


def test_large_files_are_hashed_in_several_calls(
    shards: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for top, b in (("source", b"1234"), ("n3/data", b"1235"), ("n4/data", b"1234")):
        (tmp_path / top).mkdir(parents=True)
        (tmp_path / top / "a").write_bytes(b"abc")
        (tmp_path / top / "b").write_bytes(b)
    most = []

    def compared(name: str) -> dict[str, Any]:
        given = [arguments for node, arguments in shards.calls if node == name][-1]
        hashed = given.get("hashed") or {}
        most.append(sum(length for _begin, length in hashed.values()))
        by_size = given.get("by_size", False)
        needed, digests = compare(given["directory"], given["sizes"], by_size, given["folder"], hashed)
        return {"needed": needed, "digests": digests}

    shards.answers["compared"] = compared
    monkeypatch.setattr(data_distribution, "READ_BYTES", 2)
    directories = {name: str(tmp_path / name) for name in ("n3", "n4")}
    there: dict[str, Any] = {**FROM, "folder": "data", "directories": directories}
    result = decide(shards, tmp_path / "source", True, **there)
    assert {name: one["needed"] for name, one in result["nodes"].items()} == {"n3": ["b"], "n4": []}
    assert max(most) == 2, "a timeout would limit the whole and not the progress"
    result = decide(shards, tmp_path / "source", **{**there, "from_nodes": ["n1"]})
    assert (result["nodes"]["n3"]["needed"], result["sent"]) == ([], {}), "nothing is missing"


def test_file_removed_on_both_sides_after_hashing_counts_as_missing(shards: Nodes) -> None:
    def compared(name: str) -> dict[str, Any]:
        by_size = [one for node, one in shards.calls if node == name][-1].get("by_size")
        return {"needed": [] if by_size else ["a", "b"], "digests": {}}

    shards.answers["compared"] = compared
    result = decide(shards, SOURCE, check_mode=True, **FROM)["nodes"]
    assert [one["needed"] for one in result.values()] == [["a", "b"]] * 4


def test_node_skips_files_that_it_has(shards: Nodes) -> None:
    shards.answers["listed"] = lambda name: {"sizes": {"a": 3, "c": 5} if name == "n1" else {}}
    shards.answers["compared"] = lambda name: {
        "needed": ["c"] if name == "n3" else ["a", "c"],
        "digests": {"a": "of a"},
    }
    result = decide(shards, SOURCE, **FROM)["nodes"]
    left_out = {name: one["left_out"] for name, one in shards.calls if one.get("state") == "joined"}
    assert left_out == {"n2": [], "n3": ["a"], "n4": []}
    assert [list(result[name]["copies"].values()) for name in ("n3", "n4")] == [
        [{"c": [3, 5]}],
        [{"a": [0, 3], "c": [3, 5]}],
    ]


@pytest.mark.parametrize("size", [3, 4])
def test_different_files_of_one_name_are_refused_before_anything_is_sent(shards: Nodes, size: int) -> None:
    shards.answers["listed"] = lambda name: {"sizes": {"a": 3 if name == "n1" else size}}
    shards.answers["compared"] = lambda name: {"needed": ["a"], "digests": {"a": f"of {name}"}}
    with pytest.raises(PreconditionFailed, match="checkpoints/a is another file on n2 than on n1: remove"):
        decide(shards, SOURCE, **FROM)
    assert not [one for _name, one in shards.calls if "state" in one]


def test_check_mode_only_compares(shards: Nodes) -> None:
    result = decide(shards, SOURCE, check_mode=True, **FROM)
    assert [one["needed"] for one in result["nodes"].values()] == [["a", "b"]] * 4
    assert not [one for _name, one in shards.calls if "state" in one]


def test_node_without_a_shard_fails_and_keeps_received_files(shards: Nodes) -> None:
    whole = shards.answers["stopped"]
    shards.answers["joined"] = lambda name: (
        {"port": 7077, "stored": 0} | ({"problem": "its port is taken"} if name == "n3" else {})
    )
    shards.answers["stopped"] = lambda name: whole(name) | ({"complete": False} if name == "n4" else {})
    result = decide(shards, SOURCE, **FROM)["nodes"]
    problems = {name: one["problem"] for name, one in result.items()}
    assert problems == {
        "n1": "",
        "n2": "",
        "n3": "; ".join(
            f"{name} could not send /jobs/gpt/checkpoints to n3: its port is taken" for name in ("n1", "n2")
        ),
        "n4": "; ".join(
            f"/jobs/gpt/checkpoints of {name} did not reach n4, which has not got all of it"
            for name in ("n1", "n2")
        ),
    }
    assert not [name for name, one in shards.calls if one.get("state") == "absent"], "of an earlier run, too"


def test_source_that_cannot_send_is_named_and_the_other_sends_its_files(shards: Nodes) -> None:
    source = shards.answers["source"]
    shards.answers["source"] = lambda name: {"problem": "a cannot be read"} if name == "n1" else source(name)
    result = decide(shards, SOURCE, **FROM)["nodes"]
    assert {name: one["problem"] for name, one in result.items()} == {
        "n1": "",
        **{name: f"n1 cannot send /jobs/gpt/checkpoints to {name}: a cannot be read" for name in NODES[1:]},
    }
    copies = {name: list(one["copies"].values()) for name, one in result.items()}
    assert copies == {"n1": [{"b": [0, 4]}], "n2": [], "n3": [{"b": [0, 4]}], "n4": [{"b": [0, 4]}]}


def test_each_source_that_cannot_send_is_named(shards: Nodes) -> None:
    shards.answers["source"] = lambda name: {"problem": f"{name}'s file cannot be read"}
    problem = decide(shards, SOURCE, **FROM)["nodes"]["n3"]["problem"]
    assert problem == "; ".join(
        f"{name} cannot send /jobs/gpt/checkpoints to n3: {name}'s file cannot be read"
        for name in ("n1", "n2")
    )


def test_a_node_that_does_not_answer_is_refused_before_anything_is_sent(shards: Nodes) -> None:
    def listed(name: str) -> dict[str, Any]:
        if name == "n2":
            raise AnsibleConnectionFailure("ssh")
        return {"sizes": SHARDS[name]}

    shards.answers["listed"] = listed
    with pytest.raises(PreconditionFailed) as refused:
        decide(shards, SOURCE, **FROM)
    (problem,) = refused.value.problems
    assert (problem.node, problem.sentence) == ("n2", "it cannot be reached")
    assert not [one for _name, one in shards.calls if "state" in one]
