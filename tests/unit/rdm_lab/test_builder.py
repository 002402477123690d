"""Which containers of killed builds are removed."""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.rdm.provision.rdm_lab.builder import BUILDER_LABEL, sweep_builders
from ansible_collections.rdm.provision.rdm_lab.spec import LABEL

GONE = str(2**22 + 1)
"""No process has this id: it is above the kernel's maximum."""


class Engine:
    def __init__(self, containers: dict[str, dict[str, str]]) -> None:
        self.there = containers

    def containers(self, **_query: Any) -> list[dict[str, Any]]:
        return [{"Id": name, "Labels": labels} for name, labels in self.there.items()]

    def remove_container(self, name: str, **_query: Any) -> None:
        del self.there[name]


def test_only_containers_of_a_killed_build_are_removed() -> None:
    """The nodes of a Slurm lab have the label of the builder of their image."""
    engine = Engine(
        {
            "killed": {BUILDER_LABEL: GONE},
            "at-work": {BUILDER_LABEL: str(os.getpid())},
            "node": {BUILDER_LABEL: GONE, LABEL: "mine"},
        }
    )
    sweep_builders(engine)
    assert set(engine.there) == {"at-work", "node"}
