"""One archive on its way to four nodes, as the controller sees it, which no node answers here."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import peer_transfer
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.peer_transfer import Transfer

from tests.image_archives import MadeImage, layer, saved

NODES = ["n1", "n2", "n3", "n4"]
SOURCE: dict[str, Any] = {"address": "10.0.0.1", "port": 7077, "digest": "d", "index": {"size": 3}}
COPY = "/home/user/.ansible/tmp/copy"
ALL = {
    "have": 3,
    "wanted": 3,
    "done": True,
    "error": "",
    "trouble": {},
    "silent_s": 0,
    "fetched": 3,
}


class Nodes:
    """What the module image_peer returns on each node, in place of ssh and of the nodes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.warnings: list[str] = []
        self.answers: dict[str, Callable[[str], dict[str, Any]]] = {
            "source": lambda _name: {
                "address": "10.0.0.1",
                "port": 7077,
                "digest": "d",
                "index": {"size": 3},
            },
            "joined": lambda _name: {"port": 7077},
            "reported": lambda _name: {"nodes": dict.fromkeys(NODES[1:], ALL), "sent": 3},
            "stopped": lambda name: {"complete": True, "path": f"/cache/{name}.tar"},
        }
        self.send: Callable[[], None] = lambda: None

    def host(self, name: str) -> str:
        return name

    def call(self, name: str, _module: str, arguments: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            self.calls.append((name, arguments))
            return {"problem": "", **self.answers[arguments["state"]](name)}

        return run

    def copy(self, _host: str, _path: str, _name: str) -> tuple[str, Callable[[], None]]:
        return COPY, lambda: self.send()

    def states(self) -> list[str]:
        return [arguments["state"] for _name, arguments in self.calls]

    def transfer(self, path: Path, remote_src: bool) -> dict[str, Any]:
        """Bring an archive to all nodes; return the action's result."""
        display = SimpleNamespace(display=lambda *_a, **_k: None, warning=self.warnings.append)
        options = {"distribution": "peers", "network": "", "port": 7077, "bandwidth": 0.0}
        options |= {"cluster": "c", "cache_dir": str(path.parent / "cache")}
        item = {"path": str(path), "remote_src": remote_src}
        result: dict[str, Any] = {"nodes": {}, "indexes": {}, "sent": {}}
        action: Any = SimpleNamespace(_display=display)
        executor: Any = self
        variables = {"ansible_forks": 5}
        transfer = Transfer(action, executor, options, variables, item, {name: {"size": 3} for name in NODES})
        assert transfer.chosen == "peers"
        transfer.run(result)
        return result


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    monkeypatch.setattr(peer_transfer, "_POLL_S", 0.01)
    return Nodes()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "image.tar"
    path.write_bytes(saved(MadeImage([layer("one")], ["test:1"])))
    return path


def test_nodes_load_what_others_have_brought(nodes: Nodes, archive: Path) -> None:
    result = nodes.transfer(archive, remote_src=False)
    assert result["nodes"] == {
        "n1": {str(archive): {"copy": COPY, "whole": "yes"}},
        **{name: {str(archive): {"copy": f"/cache/{name}.tar"}} for name in NODES[1:]},
    }
    assert result["indexes"][str(archive)]["size"] == archive.stat().st_size
    assert not nodes.warnings
    keys = {name: {one["key"] for node, one in nodes.calls if node == name} for name in NODES}
    assert all(len(found) == 1 for found in keys.values())
    assert len(set.union(*keys.values())) == len(NODES), "nodes may share the directory"


def test_the_source_hears_of_the_controller_while_a_node_takes_long_to_join(
    nodes: Nodes, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_transfer, "_LEASE_S", 0.3)
    heard = threading.Event()

    def reported(_name: str) -> dict[str, Any]:
        heard.set()
        return {"nodes": dict.fromkeys(NODES[1:], ALL), "sent": 3}

    def joined(name: str) -> dict[str, Any]:
        assert name != "n3" or heard.wait(20), "the source would have ended"
        return {"port": 7077}

    nodes.answers.update(reported=reported, joined=joined)
    result = nodes.transfer(archive, remote_src=True)
    assert set(result["nodes"]) == {"n2", "n3", "n4"}
    assert not nodes.warnings


def test_a_call_that_fails_once_loses_nobody(nodes: Nodes, archive: Path) -> None:
    answer = nodes.answers["reported"]

    def reported(name: str) -> dict[str, Any]:
        if nodes.states().count("reported") == 1:
            raise AnsibleConnectionFailure("ssh")
        return answer(name)

    nodes.answers["reported"] = reported
    nodes.answers["stopped"] = lambda name: {"complete": nodes.states().count("reported") > 1, "path": name}
    result = nodes.transfer(archive, remote_src=True)
    assert all("copy" in result["nodes"][name][str(archive)] for name in NODES[1:])


def test_a_source_that_ends_is_named_at_once(nodes: Nodes, archive: Path) -> None:
    nodes.answers["reported"] = lambda _name: {"problem": "the process that serves it does not answer"}
    nodes.answers["stopped"] = lambda name: {"complete": name == "n2", "path": name}
    result = nodes.transfer(archive, remote_src=True)
    assert nodes.states().count("reported") == 1
    assert result["nodes"]["n2"] == {str(archive): {"copy": "n2"}}
    assert result["nodes"]["n3"][str(archive)]["problem"] == (
        f"{archive} did not reach n3, which lost its source n1: the process that serves it does not answer"
    )


def test_a_node_that_cannot_serve_keeps_the_copy_that_is_on_its_way(nodes: Nodes, archive: Path) -> None:
    refused = threading.Event()
    arrived = threading.Event()

    def source(_name: str) -> dict[str, Any]:
        refused.set()
        return {"problem": "it cannot listen on 10.0.0.1:7077 (Address already in use)"}

    def send() -> None:
        assert refused.wait(20)
        arrived.set()

    nodes.answers["source"] = source
    nodes.send = send
    result = nodes.transfer(archive, remote_src=False)
    assert arrived.is_set(), "a copy that goes on would be left behind"
    assert result["nodes"] == {"n1": {str(archive): {"copy": COPY, "whole": "yes"}}}
    assert str(archive) in result["indexes"]
    assert nodes.warnings == [
        f"{archive} is brought to each node directly, since n1 cannot serve it: "
        "it cannot listen on 10.0.0.1:7077 (Address already in use)"
    ]


def test_a_copy_that_breaks_off_is_named(nodes: Nodes, archive: Path) -> None:
    begun = threading.Event()

    def send() -> None:
        assert begun.wait(20)
        raise OSError("no space left")

    def reported(_name: str) -> dict[str, Any]:
        begun.set()
        return {"nodes": {name: {**ALL, "have": 1, "done": False} for name in NODES[1:]}, "sent": 3}

    nodes.send = send
    nodes.answers["reported"] = reported
    nodes.answers["stopped"] = lambda name: {"complete": False, "path": name}
    problems = {name: one[str(archive)] for name, one in nodes.transfer(archive, False)["nodes"].items()}
    why = "the copy to it broke off: no space left"
    n1 = {"problem": f"{archive} did not reach n1: {why}", "copy": COPY, "whole": "yes"}
    assert problems["n1"] == n1, "what has arrived is removed"
    assert problems["n2"] == {"problem": f"{archive} did not reach n2, which lost its source n1: {why}"}


def test_a_worker_of_a_run_that_was_killed_leaves_the_nodes_alone(
    nodes: Nodes, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = os.getppid() + 1

    def reported(_name: str) -> dict[str, Any]:
        monkeypatch.setattr(os, "getppid", lambda: other)
        return {"nodes": {}, "sent": 0}

    nodes.answers["reported"] = reported
    with pytest.raises(AnsibleActionFail, match="the run has been killed"):
        nodes.transfer(archive, remote_src=True)
    assert nodes.states().count("reported") == 1
    assert "stopped" not in nodes.states(), "these may be the processes of the next run"
