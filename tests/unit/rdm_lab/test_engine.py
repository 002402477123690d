"""How a lab's nodes end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.rdm_lab import engine
from ansible_collections.rdm.provision.rdm_lab.engine import LabEngine
from ansible_collections.rdm.provision.rdm_lab.spec import LABEL, NODE_LABEL

NODE = "ab" * 32


class Docker:
    """An engine with one node, which ends only when nothing in it is frozen."""

    def __init__(self, frozen: Path) -> None:
        self.frozen = frozen
        self.state = "running"
        self.there = True

    def containers(self, **_query: Any) -> list[dict[str, Any]]:
        labels = {LABEL: "lab", NODE_LABEL: "n1"}
        one = {"Id": NODE, "Names": ["/rdm-lab-lab-n1"], "Labels": labels, "State": self.state}
        return [one] * self.there

    def inspect_container(self, _name: str) -> dict[str, Any]:
        return {"Id": NODE, "State": {"Status": self.state}}

    def kill(self, _name: str) -> None:
        assert self.frozen.read_text() == "THAWED"
        self.state = "exited"

    def remove_container(self, _name: str, **_query: Any) -> None:
        assert self.frozen.read_text() == "THAWED"
        self.there = False

    def volumes(self, **_query: Any) -> dict[str, Any]:
        return {}

    def networks(self, **_query: Any) -> list[Any]:
        return []


@pytest.mark.parametrize("group", [NODE, f"system.slice/docker-{NODE}.scope"])
@pytest.mark.parametrize("end", ["stop", "remove"])
def test_a_node_ends_in_which_a_container_is_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, end: str
) -> None:
    monkeypatch.setattr(engine, "FREEZER", str(tmp_path))
    paused = [tmp_path / part / "freezer.state" for part in (f"{group}/inner/cd", "docker/ef")]
    for state in paused:
        state.parent.mkdir(parents=True)
        state.write_text("FROZEN")
    docker: Any = Docker(paused[0])
    lab = LabEngine(docker, "lab")
    if end == "stop":
        assert lab.stop("n1")
    else:
        lab.remove()
    assert [state.read_text() for state in paused] == ["THAWED", "FROZEN"]
