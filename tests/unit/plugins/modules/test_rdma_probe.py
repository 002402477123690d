"""The devices that a container was given, and what prevents measurements in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import ExecResult
from ansible_collections.rdm.provision.plugins.module_utils.docker.container_program import NotMeasuredError
from ansible_collections.rdm.provision.plugins.modules import rdma_probe

UVERBS = "/dev/infiniband/uverbs2"
PART = {"run": "abc", "ports": [20000], "rounds": [["n2", "10.0.0.2", True]] * 9}


class Engine:
    """Stands in for the engine: answers `exec` with the given results, and records what is started."""

    def __init__(self, answer: dict[str, Any], **host: Any) -> None:
        self.answer = answer
        self.host = host
        self.posted: list[tuple[str, Any]] = []
        self.argv: list[str] = []

    def get(self, _path: str) -> dict[str, Any]:
        return {"State": {"Status": "running"}, "HostConfig": self.host}

    def exec(self, _container: str, argv: list[str], timeout: float, user: str) -> ExecResult:
        assert (timeout > 10, user) == (True, "0")
        self.argv = argv
        return ExecResult(0, json.dumps(self.answer).encode(), b"")

    def post(self, path: str, body: Any) -> Any:
        self.posted.append((path, body))
        return {"Id": "x1"}


def options(**changes: Any) -> dict[str, Any]:
    found = {name: option.get("default") for name, option in rdma_probe.ARGUMENT_SPEC.items()}
    return {**found, "node": "n1", "address": "10.0.0.1", "part": PART, **changes}


@pytest.mark.parametrize(
    ("container", "found"),
    [
        ({"HostConfig": {}}, ([], False)),
        ({"HostConfig": {"Devices": None, "Privileged": True}}, ([], True)),
        (
            {"HostConfig": {"Devices": [{"PathInContainer": UVERBS}, {"PathInContainer": "/dev/kfd"}]}},
            ([UVERBS], False),
        ),
        ({"HostConfig": {"Devices": [{"PathInContainer": "/dev/infiniband/"}]}}, ([], True)),
        ({"HostConfig": {}, "Mounts": [{"Destination": "/dev/infiniband"}]}, ([], True)),
        ({"HostConfig": {}, "Mounts": [{"Destination": UVERBS}]}, ([UVERBS], False)),
    ],
)
def test_devices_of_a_container_are_reported(
    container: dict[str, Any], found: tuple[list[str], bool]
) -> None:
    assert rdma_probe.given(container) == found


def test_running_job_prevents_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_probe, "find_running", lambda *_: ["gpt-1121"])
    engine: Any = Engine({"problem": "", "device": "mlx5_2"}, Devices=[{"PathInContainer": UVERBS}])
    found = rdma_probe.gather(engine, options())
    assert found == {
        "reason": "the job gpt-1121 runs: stop it first, or wait for its end",
        "found": {"device": "mlx5_2"},
        "given": [UVERBS],
        "given_all": False,
    }
    assert engine.argv[-3:] == ["10.0.0.1", "/", "1"]


def test_on_a_further_rail_the_address_of_that_rail_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_probe, "find_running", lambda *_: ["tiny-1"])
    rails = {"ib0": "10.0.0.0/24", "ib1": "10.0.1.0/24"}
    engine: Any = Engine({"problem": "", "device": "mlx5_2"})
    found = rdma_probe.gather(engine, options(rails=rails, rail="ib1"))
    assert engine.argv[-3:] == ["10.0.1.1", "/", "2"]
    assert found["reason"] == "the job tiny-1 runs: stop it first, or wait for its end"
    with pytest.raises(NotMeasuredError, match="there is no rail ib7: choose one of ib0, ib1"):
        rdma_probe.gather(engine, options(rails=rails, rail="ib7"))


def test_a_program_is_started_with_its_runs_mark_and_outlives_the_module() -> None:
    engine: Any = Engine({})
    assert rdma_probe.start(engine, options()) == {"reason": ""}
    (_, spec), (path, body) = engine.posted
    assert spec["Env"] == ["RDM_VERIFY_RUN=abc"]
    assert json.loads("".join(spec["Cmd"][5:])) == PART
    assert (path, body) == ("/exec/x1/start", {"Detach": True})


def test_a_collection_reports_progress_and_queries_without_the_rounds() -> None:
    answer = {"done": False, "round": 0, "of": 7, "pairs": {"n2": [1.0, 2.0, 3.0]}, "errors": {}}
    engine: Any = Engine(answer)
    found = rdma_probe.collect(engine, options(wait=5.0))
    assert found == {
        "reason": "",
        "progress": "round 1 of 7",
        "done": False,
        "pairs": {"n2": [1.0, 2.0, 3.0]},
        "errors": {},
    }
    request = json.loads("".join(engine.argv[5:]))
    assert (request["rounds"], request["collect"]) == ([], 5.0)
    gone: Any = Engine({"problem": "its part of the measurement ended before its time"})
    with pytest.raises(NotMeasuredError, match="ended before its time"):
        rdma_probe.collect(gone, options())
