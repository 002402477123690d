"""In the engine's list of containers, any field but the ID may be missing."""

from __future__ import annotations

from typing import Any, cast

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.container.readiness import refuse_served
from ansible_collections.rdm.provision.plugins.module_utils.container.swap import leftovers_of
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerError
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import container_names, the_one
from ansible_collections.rdm.provision.plugins.module_utils.jobs import execution_environment
from ansible_collections.rdm.provision.plugins.modules import container_exec, docker_owned

BARE = {"Id": "0123456789abcdef"}
SHORT = "0123456789ab"


class Engine:
    """An engine whose only container has just an id, until it is removed."""

    def __init__(self, **fields: Any) -> None:
        self.containers = [{**BARE, **fields}]
        self.calls: list[str] = []

    def get(self, path: str, **_query: Any) -> Any:
        if path == "/containers/json":
            return self.containers
        raise DockerError(404, "there is none")

    def delete(self, path: str, **_query: Any) -> None:
        self.calls.append(path)
        raise DockerError(404, "it is gone already")

    def post(self, path: str, *_body: Any, **_query: Any) -> None:
        self.calls.append(path)


def engine(**fields: Any) -> DockerAPI:
    return cast("DockerAPI", Engine(**fields))


@pytest.mark.parametrize("names", [{}, {"Names": None}, {"Names": []}], ids=["missing", "null", "empty"])
def test_container_without_a_name_is_identified_by_its_id(names: dict[str, Any]) -> None:
    assert container_names([{**BARE, **names}]) == [SHORT]
    assert the_one([{**BARE, **names}])["Id"] == BARE["Id"]
    with pytest.raises(NodeError, match=f"the container {SHORT} does not run"):
        container_exec.find_container(engine(**names), "rdm")
    with pytest.raises(NodeError, match=f"the container {SHORT} does not run"):
        execution_environment.find_container(engine(**names), "rdm")
    found = container_exec.find_container(engine(**names, State="running"), "rdm")
    assert found == {"name": SHORT, "state": "running"}
    with pytest.raises(NodeError, match=r"something else serves /run/x\.sock already:"):
        refuse_served(engine(**names), "/run/x.sock")


def test_down_removes_a_container_without_a_name() -> None:
    there = Engine()
    params = {"cluster": "rdm", "role": "container", "driver": "", "stop_timeout": 0, "config_dir": ""}
    assert docker_owned.remove_containers(cast("DockerAPI", there), params, False) == [SHORT]
    assert f"/containers/{BARE['Id']}" in there.calls


def test_up_removes_a_container_without_a_name_and_one_that_vanishes() -> None:
    there = Engine()
    assert leftovers_of(cast("DockerAPI", there), "rdm", "rdm", check=True) == (None, [SHORT])
    assert there.calls == []
    assert leftovers_of(cast("DockerAPI", there), "rdm", "rdm", check=False) == (None, [SHORT])
    assert there.calls == [f"/containers/{BARE['Id']}"]
