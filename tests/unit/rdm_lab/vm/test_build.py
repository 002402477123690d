"""Which disks of virtual machines are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.rdm_lab.vm import recipe
from ansible_collections.rdm.provision.rdm_lab.vm.build import Machines
from docker.errors import APIError, ImageNotFound
from requests import Response

FILES = Path(__file__).parents[4] / "roles/lab/files"


class Engine:
    """An engine that has images of several recipes."""

    def __init__(self, versions: list[str], used: str) -> None:
        self.versions, self.used = versions, used

    def images(self, **_query: Any) -> list[dict[str, Any]]:
        """Return all of them."""
        return [{"Id": version, "Labels": recipe.image_labels(version)} for version in self.versions]

    def inspect_image(self, name: str) -> dict[str, Any]:
        """Return the image of the present recipe's name."""
        if name.rpartition(":")[2] in self.versions:
            return {"Id": name}
        raise ImageNotFound("no such image")

    def remove_image(self, image: str) -> None:
        """Remove an image that no container has."""
        if image == self.used:
            refused = Response()
            refused.status_code = 409
            raise APIError("image is being used", refused)
        self.versions.remove(image)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    now = recipe.version(FILES)
    # The first is from when there was one engine.
    disks = (f"{now}-20.10-6.12", f"{now}-26.1-newest")
    for name in ("old", "old-20.10", "used-26.1", "used-newest-6.12", *disks):
        (tmp_path / f"machine-{name}").mkdir()
    return tmp_path


def machines(cache: Path, engine: str, kernel: str = recipe.DEFAULT_KERNEL) -> Machines:
    engine_of_images = Engine(["old", "used", recipe.version(FILES)], used="used")
    return Machines(engine_of_images, FILES, cache, recipe.Choice(engine, kernel))


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
