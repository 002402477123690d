"""The module's calls in the container, and its messages when there is no answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import (
    DockerError,
    DockerProblem,
    DockerTimeout,
    ExecResult,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.container_program import NotMeasuredError
from ansible_collections.rdm.provision.plugins.modules import fabric_probe
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric import fabric

NODES = {f"n{rank}": f"10.0.0.{rank}" for rank in range(5)}


class Engine:
    """Stands in for the engine: answers `exec` with what it was given."""

    def __init__(self, answer: ExecResult | DockerProblem, state: str = "running") -> None:
        self.answer = answer
        self.state = state
        self.argv: list[str] = []

    def get(self, _path: str) -> dict[str, Any]:
        return {"State": {"Status": self.state}}

    def exec(self, _container: str, argv: list[str], timeout: float, user: str) -> ExecResult:
        assert user == "0"
        assert timeout > 10
        self.argv = argv
        if isinstance(self.answer, DockerProblem):
            raise self.answer
        return self.answer

    @property
    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads("".join(self.argv[5:]))
        return found


def answer(**changes: Any) -> ExecResult:
    peers = len(NODES) - 1
    result = {
        "problem": "",
        "method": "icmp",
        "note": "",
        "link": {"name": "eth0", "up": True},
        "also": "",
        "rtt_us": [10.0 * (index + 1) for index in range(peers)],
        "min_us": [1.0] * peers,
        "sent": [3] * peers,
        "answered": [3] * peers,
        "errors": {},
        "ssh": {},
        "login": {},
        **changes,
    }
    return ExecResult(0, json.dumps(result).encode(), b"")


def measure(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, nodes: dict[str, str] = NODES, **options: Any
) -> dict[str, Any]:
    parameters = {name: option.get("default") for name, option in fabric_probe.ARGUMENT_SPEC.items()}
    monkeypatch.setattr(fabric_probe, "DockerAPI", lambda _socket: engine)
    return fabric_probe.measure({**parameters, "node": "n2", **options}, nodes)


def test_each_node_measures_the_next_node_first(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(answer())
    found = measure(monkeypatch, engine, ssh_peers=1)
    assert engine.settings["source"] == "10.0.0.2"
    assert engine.settings["peers"] == ["10.0.0.3", "10.0.0.4", "10.0.0.0", "10.0.0.1"]
    assert engine.settings["ssh"] == [0]
    assert engine.settings["login"] == ["10.0.0.2", "10.0.0.3"]
    assert found["rtt_us"] == "n3 10.0 1.0\nn4 20.0 1.0\nn0 30.0 1.0\nn1 40.0 1.0\n"


def test_only_those_that_are_given_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {name: NODES[name] for name in ("n0", "n2", "n4")}
    engine = Engine(answer(rtt_us=[10.0, None], min_us=[9.0, None]))
    found = measure(monkeypatch, engine, nodes)
    assert engine.settings["peers"] == ["10.0.0.4", "10.0.0.0"]
    assert found["rtt_us"] == "n4 10.0 9.0\nn0 -\n"


def test_results_are_reported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(
        answer(
            answered=[3, 2, 0, 3],
            errors={"2": "network is unreachable"},
            ssh={"0": "", "1": "no answer"},
            login={"10.0.0.2": "", "10.0.0.3": "x"},
        )
    )
    found = measure(monkeypatch, engine)
    assert found["loss"] == {"n4": 0.33}
    assert found["errors"] == {"n0": "network is unreachable"}
    assert found["ssh"] == {"n3": "", "n4": "no answer"}
    assert found["login"] == {"n2": "", "n3": "x"}


def test_no_argument_is_longer_than_the_kernel_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {f"n{rank}": f"10.100.{100 + rank // 200}.{rank % 200 + 1}" for rank in range(20_000)}
    engine = Engine(answer(**dict.fromkeys(("rtt_us", "min_us"), [None] * 19_999)))
    measure(monkeypatch, engine, nodes)
    assert max(len(argument) for argument in engine.argv) < 128 * 1024
    assert len(engine.settings["peers"]) == 19_999


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (
            Engine(ExecResult(126, b"permission denied", b"")),
            "nothing can be run in container rdm: permission denied",
        ),
        (
            Engine(DockerError(400, "OCI runtime exec failed: no such file or directory")),
            "container rdm has no python3 in its PATH, which the measurement needs",
        ),
        (
            Engine(ExecResult(1, b"", b"Traceback\n  File\nSyntaxError: invalid syntax\n")),
            "the measurement in container rdm ended with code 1: SyntaxError: invalid syntax",
        ),
        (
            Engine(ExecResult(0, b"not json", b"")),
            "the measurement in container rdm ended with code 0: not json",
        ),
        (
            Engine(ExecResult(142, b"", b"")),
            "the measurement in container rdm ended with code 142: nothing was printed",
        ),
        (Engine(DockerTimeout("python3 did not finish within 20 s")), "python3 did not finish within 20 s"),
    ],
)
def test_every_reason_not_to_measure_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, reason: str
) -> None:
    with pytest.raises(NotMeasuredError) as caught:
        measure(monkeypatch, engine)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("state", "queried"),
    [("running", ["10.0.0.2", "10.0.1.2"]), ("exited", [])],
)
def test_a_container_that_runs_is_measured_on_every_rail(
    monkeypatch: pytest.MonkeyPatch, state: str, queried: list[str]
) -> None:
    """It lacks the address of the first one only."""
    seen: list[str] = []

    class TwoRails(Engine):
        def exec(self, container: str, argv: list[str], timeout: float, user: str) -> ExecResult:
            super().exec(container, argv, timeout, user)
            seen.append(self.settings["source"])
            return answer(problem="" if len(seen) > 1 else "the container does not have the address 10.0.0.2")

    monkeypatch.setattr(fabric_probe, "DockerAPI", lambda _socket: TwoRails(answer(), state))
    parameters = {name: option.get("default") for name, option in fabric_probe.ARGUMENT_SPEC.items()}
    rails = {"ib0": "10.0.0.0/24", "ib1": "10.0.1.0/24"}
    found = fabric_probe.all_rails({**parameters, "node": "n2", "rails": rails}, NODES)
    assert (found["measured"], found["container_state"], seen) == (False, state, queried)
    first, *further = fabric.measurements(found, 2)
    # A container that does not run fails on each of them.
    assert [one.measured for one in further] == [bool(queried)]
    assert queried or further == [first]
