"""Which disks of virtual machines are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerError
from ansible_collections.rdm.provision.rdm_lab.vm import recipe
from ansible_collections.rdm.provision.rdm_lab.vm.build import Machines

FILES = Path(__file__).parents[4] / "roles/lab/files"


class Engine:
    """An engine that has images of several recipes."""

    def __init__(self, versions: list[str], used: str) -> None:
        self.versions, self.used = versions, used

    def get(self, path: str, **_query: Any) -> Any:
        """Answer a question."""
        if path == "/images/json":
            return [{"Id": version, "Labels": recipe.image_labels(version)} for version in self.versions]
        return {}

    def delete(self, path: str) -> None:
        """Remove an image that no container has."""
        if path == f"/images/{self.used}":
            raise DockerError(409, "image is being used")
        self.versions.remove(path.rpartition("/")[2])


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    now = recipe.version(FILES)
    # The first is from when there was one engine.
    disks = (f"{now}-20.10-6.12", f"{now}-26.1-newest")
    for name in ("old", "old-20.10", "used-26.1", "used-newest-6.12", *disks):
        (tmp_path / f"machine-{name}").mkdir()
    return tmp_path


def machines(cache: Path, engine: str, kernel: str = recipe.DEFAULT_KERNEL) -> Machines:
    api = Engine(["old", "used", recipe.version(FILES)], used="used")
    return Machines(cast(DockerAPI, api), FILES, cache, recipe.Choice(engine, kernel))


def test_each_engine_and_kernel_has_a_disk_and_they_share_the_image(cache: Path) -> None:
    made = {
        (engine, kernel): machines(cache, engine, kernel)
        for engine in recipe.ENGINES
        for kernel in recipe.KERNELS
    }
    assert len({one.directory for one in made.values()}) == len(made)
    assert len({one.image for one in made.values()}) == 1
    assert {choice for choice, one in made.items() if one.present()} == {
        ("20.10", "6.12"),
        ("26.1", "newest"),
    }


def test_disks_of_a_recipe_that_no_lab_uses_go_and_those_of_other_engines_stay(cache: Path) -> None:
    machines(cache, "20.10").forget_superseded()
    now = recipe.version(FILES)
    left = {path.name for path in cache.iterdir()}
    kept = ("used-26.1", "used-newest-6.12", f"{now}-20.10-6.12", f"{now}-26.1-newest")
    assert left == {f"machine-{name}" for name in kept}
