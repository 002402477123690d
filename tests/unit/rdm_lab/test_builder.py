"""Which containers of killed builds are removed."""

from __future__ import annotations

import os
from typing import Any, cast

from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.rdm_lab.builder import BUILDER_LABEL, sweep_builders
from ansible_collections.rdm.provision.rdm_lab.spec import LABEL

GONE = str(2**22 + 1)
"""No process has this number: it is above the kernel's highest."""


class Engine:
    def __init__(self, containers: dict[str, dict[str, str]]) -> None:
        self.containers = containers

    def get(self, _path: str, **_query: Any) -> list[dict[str, Any]]:
        return [{"Id": name, "Labels": labels} for name, labels in self.containers.items()]

    def delete(self, path: str, **_query: Any) -> None:
        del self.containers[path.rpartition("/")[2]]


def test_only_what_a_killed_build_has_left_is_removed() -> None:
    """The nodes of a Slurm lab have the label of the builder of their image."""
    engine = Engine(
        {
            "killed": {BUILDER_LABEL: GONE},
            "at-work": {BUILDER_LABEL: str(os.getpid())},
            "node": {BUILDER_LABEL: GONE, LABEL: "mine"},
        }
    )
    sweep_builders(cast(DockerAPI, engine))
    assert set(engine.containers) == {"at-work", "node"}
