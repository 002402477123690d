# SPDX-License-Identifier: GPL-3.0-or-later
"""Names, identity and size of images."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import (
    new_layers,
    room_to_load,
    same_image,
    short_name,
    traits,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive

from tests.image_archives import (
    MadeImage,
    digest,
    inspected,
    layer,
    put,
    saved,
)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("docker.io/library/debian", "debian:latest"),
        ("index.docker.io/rocm/pytorch:6", "rocm/pytorch:6"),
        ("localhost:5000/app", "localhost:5000/app:latest"),
        ("registry.example.com/a/b-c_d:V1.x", "registry.example.com/a/b-c_d:V1.x"),
    ],
)
def test_names_are_as_docker_shows_them(name: str, short: str) -> None:
    assert short_name(name) == short
    assert short_name(short) == short


@pytest.mark.parametrize(
    "name", ["", "a b", "a:$(id)", "a'b", "a\nb", "../x", "a@sha256:" + 64 * "0", "-x:1"]
)
def test_invalid_image_names_are_refused(name: str) -> None:
    with pytest.raises(NodeError, match="is not an image name"):
        short_name(name)


def test_the_same_image_in_either_store(tmp_path: Path, image: MadeImage) -> None:
    (found,) = index_archive(put(tmp_path, saved(image))).images
    assert same_image(found, inspected(image))
    elsewhere = {"Id": "sha256:" + 64 * "e"}
    assert same_image(found, inspected(image, **elsewhere))
    assert same_image(found, inspected(image, Created="2026-01-02T03:04:05.670000000Z", **elsewhere))
    assert not same_image(found, inspected(image, Created="2026-01-02T03:04:06Z", **elsewhere))
    assert not same_image(
        found, inspected(image, Config={"Cmd": ["/bin/false"], "Env": ["A=1"]}, **elsewhere)
    )
    assert not same_image(found, inspected(image, RootFS={"Layers": image.diff_ids[:1]}, **elsewhere))
    assert not same_image(found, {**elsewhere})


def test_an_unknown_moment_of_creation_is_none() -> None:
    assert traits("", None) == traits("0001-01-01T00:00:00Z", {})
    assert traits("2026-01-01T00:00:00Z", {}) == traits("2026-01-01T00:00:00.000Z", {"Env": []})


def test_layers_that_an_engine_shares_need_no_room(tmp_path: Path) -> None:
    base, middle, top = layer("base", 5000), layer("middle", 9000), layer("top", 2000)
    image = MadeImage([base, middle, top], ["example/app:1"])
    index = index_archive(put(tmp_path, saved(image)))
    sizes = dict(zip(image.diff_ids, map(len, image.layers), strict=True))
    assert new_layers(index.images, []) == sizes
    assert new_layers(index.images, [[digest(middle)]]) == sizes, "a layer is shared on the same layers only"
    assert new_layers(index.images, [[digest(base)], [digest(base), digest(middle)], []]) == {
        digest(top): len(top)
    }


def test_room_is_needed_for_all_images_and_the_largest_archive() -> None:
    archives = [
        {"unpacked": 100, "new_layers": {"base": 80, "one": 20}},
        {"unpacked": 0, "new_layers": {}},
        {"unpacked": 90, "new_layers": {"base": 80, "two": 10}},
    ]
    assert room_to_load(archives, classic=True) == 200
    assert room_to_load(archives[::-1], classic=True) == 210
    assert room_to_load(archives, classic=False) == 2 * 110
    assert room_to_load([], classic=True) == 0
