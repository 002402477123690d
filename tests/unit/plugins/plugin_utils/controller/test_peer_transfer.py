"""The transfer of one archive to four nodes, as the controller sees it; no node answers."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible_collections.rdm.provision.plugins.module_utils.images import peer_process
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import NOTED
from ansible_collections.rdm.provision.plugins.modules import image_peer
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import image_transfer, peer_transfer

from tests.image_archives import MadeImage, layer, saved
from tests.unit.plugins.peer_nodes import ALL, COPY, NODES, SOURCE, Nodes

HANGS_S = 240


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    monkeypatch.setattr(peer_transfer, "_POLL_S", 0.01)
    return Nodes()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "image.tar"
    path.write_bytes(saved(MadeImage([layer("one")], ["test:1"])))
    return path


def test_nodes_load_archives_sent_by_others(nodes: Nodes, archive: Path) -> None:
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
    monkeypatch.setattr(peer_transfer, "_RENEW_S", 0.1)
    called = threading.Event()

    def reported(_name: str) -> dict[str, Any]:
        called.set()
        return {"nodes": dict.fromkeys(NODES[1:], ALL), "sent": 3}

    def joined(name: str) -> dict[str, Any]:
        assert name != "n3" or called.wait(HANGS_S), "the source would have ended"
        return {"port": 7077, "stored": 0}

    nodes.answers.update(reported=reported, joined=joined)
    result = nodes.transfer(archive, remote_src=True)
    assert set(result["nodes"]) == {"n2", "n3", "n4"}
    assert not nodes.warnings


def test_a_lease_outlives_a_report_that_times_out_and_another_as_slow(
    nodes: Nodes, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_all = peer_transfer.call_all
    timeouts: dict[str, float] = {}

    def recorded(executor: Any, module: str, arguments: Any, threads: int, *more: Any) -> Any:
        timeouts.update((one["state"], more[0]) for one in arguments.values() if more)
        return call_all(executor, module, arguments, threads, *more)

    monkeypatch.setattr(peer_transfer, "call_all", recorded)
    nodes.transfer(archive, remote_src=False)
    (lease,) = {one["lease"] for _name, one in nodes.calls}
    assert lease > 2 * timeouts["reported"]
    assert timeouts["reported"] < image_peer._ANSWER_S, "a source that stands still is not one that has ended"
    for state in ("source", "joined"):
        most = lease + peer_process._PORT_S + peer_process.START_S
        assert timeouts[state] > most, "a killed run's processes keep the port so long"
    monkeypatch.setattr(peer_transfer, "READ_BYTES", 1)
    nodes.transfer(archive, remote_src=True)
    assert timeouts["source"] == peer_transfer.READ_S * (1 + 3), "it reads its 3 bytes before it starts"


def test_single_failed_call_loses_no_node(nodes: Nodes, archive: Path) -> None:
    answer = nodes.answers["reported"]

    def reported(name: str) -> dict[str, Any]:
        if nodes.states().count("reported") == 1:
            raise AnsibleConnectionFailure("ssh")
        return answer(name)

    nodes.answers["reported"] = reported
    nodes.answers["stopped"] = lambda name: {"complete": nodes.states().count("reported") > 1, "path": name}
    result = nodes.transfer(archive, remote_src=True)
    assert all("copy" in result["nodes"][name][str(archive)] for name in NODES[1:])


@pytest.mark.parametrize("begun", [True, False])
def test_no_node_is_given_up_for_missing_reports_of_a_stalled_source(
    nodes: Nodes, archive: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    now = 100.0
    monkeypatch.setattr(peer_transfer, "time", SimpleNamespace(monotonic=lambda: now, sleep=lambda _s: None))
    some = {name: {**ALL, "have": 1, "done": False} for name in NODES[1:] if begun}
    reports = iter([some, some, dict.fromkeys(NODES[1:], ALL)])

    def reported(_name: str) -> dict[str, Any]:
        nonlocal now
        now += 61 if nodes.states().count("reported") == 2 else 1
        return {"nodes": next(reports), "sent": 3}

    nodes.answers["reported"] = reported
    nodes.answers["stopped"] = lambda name: {"complete": nodes.states().count("reported") > 2, "path": name}
    result = nodes.transfer(archive, remote_src=True)
    assert all("copy" in result["nodes"][name][str(archive)] for name in NODES[1:]), result


def test_a_source_that_ends_is_named_at_once(nodes: Nodes, archive: Path) -> None:
    nodes.answers["reported"] = lambda _name: {"problem": "the process that serves it does not answer"}
    nodes.answers["stopped"] = lambda name: {"complete": name == "n2", "path": name}
    result = nodes.transfer(archive, remote_src=True)
    assert nodes.states().count("reported") == 1
    assert result["nodes"]["n2"] == {str(archive): {"copy": "n2"}}
    assert result["nodes"]["n3"][str(archive)]["problem"] == (
        f"{archive} did not reach n3, which lost its source n1: the process that serves it does not answer"
    )


@pytest.mark.parametrize(
    ("reported", "end", "why"),
    [
        ({"problem": "it does not answer"}, {"error": "no space left"}, "stopped at 0%: no space left"),
        ({"nodes": {}, "sent": 3}, {"error": "no space left"}, "stopped at 0%: no space left"),
        ({"nodes": {}, "sent": 3}, {}, "has not begun to fetch it"),
        (
            {"nodes": dict.fromkeys(NODES[1:], ALL), "sent": 3},
            {"problem": "another run has taken it over"},
            "did not report its end: another run has taken it over",
        ),
    ],
)
def test_nodes_own_report_wins_over_its_peers(
    nodes: Nodes,
    archive: Path,
    monkeypatch: pytest.MonkeyPatch,
    reported: dict[str, Any],
    end: dict[str, Any],
    why: str,
) -> None:
    monkeypatch.setattr(image_transfer, "SILENT_S", 0.0)
    monkeypatch.setattr(image_transfer, "silent_after_s", lambda _every_s: 0.0)
    nodes.answers["reported"] = lambda _name: reported
    nodes.answers["stopped"] = lambda name: {"complete": False, "error": "", "path": name, **end}
    problem = nodes.transfer(archive, remote_src=True)["nodes"]["n3"][str(archive)]["problem"]
    assert problem == f"{archive} did not reach n3, which {why}"


def test_a_node_that_cannot_serve_keeps_the_copy_that_is_on_its_way(nodes: Nodes, archive: Path) -> None:
    refused = threading.Event()
    arrived = threading.Event()

    def source(_name: str) -> dict[str, Any]:
        refused.set()
        return {"problem": "another program listens on 10.0.0.1:7077"}

    def send() -> None:
        assert refused.wait(HANGS_S)
        arrived.set()

    nodes.answers["source"] = source
    nodes.send = send
    result = nodes.transfer(archive, remote_src=False)
    assert arrived.is_set(), "a copy that goes on would be left behind"
    assert result["nodes"] == {"n1": {str(archive): {"copy": COPY, "whole": "yes"}}}
    assert str(archive) in result["indexes"]
    assert nodes.warnings == [
        f"{archive} is brought to each node directly, since n1 cannot serve it: "
        "another program listens on 10.0.0.1:7077"
    ]


def test_nodes_that_cannot_take_part_for_the_same_reason_are_one_warning(nodes: Nodes, archive: Path) -> None:
    why = {"n2": "it has no room", "n3": "the source does not answer", "n4": "the source does not answer"}
    nodes.answers["joined"] = lambda name: {"problem": why[name]}
    assert nodes.transfer(archive, remote_src=True)["nodes"] == {}
    assert nodes.warnings == [
        f"{archive} is brought directly to {those}, which cannot take part with n1 as source: {reason}"
        for those, reason in (("n2", why["n2"]), ("n3, n4", why["n3"]))
    ]
    removed = {name for name, given in nodes.calls if given["state"] == "absent"}
    assert removed == set(NODES[1:]), "an earlier run may have left parts of it"


def test_files_of_a_later_run_are_not_removed(nodes: Nodes, archive: Path) -> None:
    for state in ("joined", "reported"):
        nodes.answers[state] = lambda _name: {"problem": "another run has taken it over"}
    assert nodes.transfer(archive, remote_src=True)["nodes"] == {}
    assert "stopped" in nodes.states()
    assert "absent" not in nodes.states()


def test_a_node_that_joins_too_late_keeps_nothing(nodes: Nodes, archive: Path) -> None:
    def joined(name: str) -> dict[str, Any]:
        if name == "n3":
            raise TimeoutError
        return {"port": 7077, "stored": 0}

    nodes.answers["joined"] = joined
    result = nodes.transfer(archive, remote_src=True)
    assert set(result["nodes"]) == {"n2", "n4"}
    assert nodes.warnings == [
        f"{archive} is brought directly to n3, which cannot take part with n1 as source: "
        f"it has not answered for {peer_transfer._START_S:.0f} s"
    ]
    called = [given.get("state") for name, given in nodes.calls if name == "n3"]
    assert called == ["joined", "stopped", "absent", "absent"]
    removed = {given["path"] for _name, given in nodes.calls if given.get("state") == "absent"}
    assert removed == {"/cache/n3.tar", "/cache/n3.tar" + NOTED}


def test_share_that_engines_already_have_is_shown(nodes: Nodes, archive: Path) -> None:
    nodes.answers["joined"] = lambda name: {"port": 7077, "stored": 0 if name == "n3" else 3 << 20}
    nodes.transfer(archive, remote_src=True)
    message = "image.tar: up to 3.0 MiB of it are already in the engine of n2, n4"
    assert [line for line in nodes.shown if line.endswith(message)], nodes.shown


def test_unchanged_progress_is_not_shown_again(nodes: Nodes, archive: Path) -> None:
    def reported(_name: str) -> dict[str, Any]:
        done = nodes.states().count("reported") > 3
        return {
            "nodes": {name: {**ALL, "have": 3 if done else 1, "done": done} for name in NODES[1:]},
            "sent": 3,
        }

    nodes.answers["reported"] = reported
    nodes.transfer(archive, remote_src=True)
    assert [line.rpartition(": ")[2] for line in nodes.shown] == [
        "n1 reads it",
        "33% of 3 B on 3 nodes",
        "100% of 3 B on 3 nodes",
    ]


@pytest.mark.parametrize(
    ("remote_src", "verified", "left_out"), [(True, ["n2", "n3", "n4"], []), (False, [], ["layer"])]
)
def test_archive_listed_by_a_node_is_verified_as_a_whole(
    nodes: Nodes, archive: Path, remote_src: bool, verified: list[str], left_out: list[str]
) -> None:
    own = hashlib.sha256(archive.read_bytes()).hexdigest()
    present = {"n3": ["layer"]}
    result = nodes.transfer(archive, remote_src, sha256=own.upper(), present=present, unpack=True)
    copies = {name: one[str(archive)] for name, one in result["nodes"].items() if name != "n1"}
    assert [name for name, copy in copies.items() if copy.get("sha256") == own] == verified
    assert len(copies) == 3
    given = {name: one for name, one in nodes.calls if one["state"] in ("source", "joined")}
    assert given["n3"]["left_out"] == left_out
    assert not given["n1"].get("unpack")


@pytest.mark.parametrize("lost", [False, True])
def test_source_loads_the_decompressed_archive(nodes: Nodes, archive: Path, lost: bool) -> None:
    nodes.answers["source"] = lambda _name: {**SOURCE, "path": "/cache/n1.tar"}
    if lost:
        nodes.answers["reported"] = lambda _name: {"problem": "it has ended"}
    result = nodes.transfer(archive, remote_src=True, unpack=True)
    own = {"copy": "/cache/n1.tar", "whole": "yes"}
    assert result["nodes"].pop("n1", {}) == ({} if lost else {str(archive): own})
    # What is in the listed archive is not what arrives.
    assert result["nodes"] == {name: {str(archive): {"copy": f"/cache/{name}.tar"}} for name in NODES[1:]}
    given = {name: one for name, one in nodes.calls if one["state"] in ("source", "joined")}
    assert given["n1"]["unpack"] is True
    assert [given[name]["index"] for name in NODES[1:]] == 3 * [{"size": 3}]


def test_a_copy_that_breaks_off_is_named(nodes: Nodes, archive: Path) -> None:
    begun = threading.Event()

    def send() -> None:
        assert begun.wait(HANGS_S)
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
    lost = f"{archive} did not reach n2, which lost its source n1: {why}"
    assert problems["n2"] == {"problem": lost, "left": "n2"}


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


def test_a_run_that_was_killed_leaves_no_copy_on_its_way(
    nodes: Nodes, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending: list[subprocess.Popen[bytes]] = []
    began = threading.Event()
    other = os.getppid() + 1

    def send() -> None:
        sending.append(subprocess.Popen(["sleep", "600"]))
        began.set()
        sending[0].wait()

    def reported(_name: str) -> dict[str, Any]:
        assert began.wait(HANGS_S)
        monkeypatch.setattr(os, "getppid", lambda: other)
        # They have what they need, and the rest of the archive is on its way to the source.
        return {"nodes": dict.fromkeys(NODES[1:], ALL), "sent": 3}

    nodes.send = send
    nodes.answers["reported"] = reported
    with pytest.raises(AnsibleActionFail, match="the run has been killed"):
        nodes.transfer(archive, remote_src=False)
    assert sending[0].wait(HANGS_S) == -signal.SIGTERM
