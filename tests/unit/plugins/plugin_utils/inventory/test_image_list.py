"""The list of images: what is wrong with it, and which image runs."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import sentences
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.image_list import (
    Images,
    canonical,
    check_images,
    distribution_problems,
    mirror_problems,
    registry_of,
    unpinned,
)

PROFILES = {"rocm": [{"name": "rocm/pytorch:1", "source": "registry"}], "cpu": []}
PULLED = {"name": "a:1", "source": "registry"}
ARCHIVED = {"name": "b:1", "source": "archive", "path": "/srv/b.tar"}
BUILT = {"name": "c:1", "source": "build", "build": {"path": "/srv/c"}}


def checked(images: Any, accelerator: str = "cpu", container_image: str = "") -> Images:
    return check_images("n1", images, PROFILES, accelerator, container_image)


def problems_of(images: Any, accelerator: str = "cpu", container_image: str = "") -> list[str]:
    return sentences(checked(images, accelerator, container_image).problems)


def test_sound_list_gives_its_first_image_unless_another_is_chosen() -> None:
    images = [PULLED, {**ARCHIVED, "sha256": 64 * "A"}, BUILT]
    assert checked(images) == ("a:1", True, [])
    assert checked(images, container_image="b:1") == ("b:1", True, [])
    assert checked(images, container_image="docker.io/library/c:1") == ("docker.io/library/c:1", True, [])


def test_profile_serves_when_nothing_is_listed() -> None:
    assert checked([], "rocm") == checked(None, "rocm") == ("rocm/pytorch:1", True, [])
    assert problems_of([], "rocm", "a:1") == [
        "n1: container_image a:1 is not in images_profiles: list it in images_list, or choose one of "
        "rocm/pytorch:1"
    ]


def test_without_list_and_profile_the_node_must_have_the_image() -> None:
    assert checked([], container_image="mine:1") == ("mine:1", False, [])
    [sentence] = problems_of([])
    assert sentence.startswith("n1: images_list is empty, and images_profiles has nothing for cpu: list the")


def test_image_that_is_not_listed_is_refused() -> None:
    assert problems_of([PULLED, ARCHIVED], container_image="c:1") == [
        "n1: container_image c:1 is not in images_list: list it in images_list, or choose one of a:1, b:1"
    ]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({**ARCHIVED, "path": ""}, "b:1 in images_list is an archive without path: say where it is, such as"),
        ({"name": "b:1", "source": "archive"}, "b:1 in images_list is an archive without path"),
        ({**ARCHIVED, "sha256": "abc"}, "b:1 in images_list has the sha256 abc, which is not 64 hexadecimal"),
        ({**ARCHIVED, "sha256": 64 * "g"}, "which is not 64 hexadecimal digits: give what sha256sum prints"),
        (
            {"name": "c:1", "source": "build"},
            "c:1 in images_list is a build without build.path: say from what",
        ),
        ({**BUILT, "build": {"dockerfile": "x"}}, "c:1 in images_list is a build without build.path"),
        ({"name": "a:1", "source": "ftp"}, "has the source 'ftp': choose one of registry, archive, build"),
        ({"name": "a:1"}, "a:1 in images_list has no source"),
        ({"source": "registry"}, "entry 1 of images_list has no name: write it like {name: "),
        ({"name": "", "source": "registry"}, "entry 1 of images_list has no name"),
        ("a:1", "entry 1 of images_list has no name"),
        ({"name": "$(id) x", "source": "registry"}, "$(id) x in images_list is not an image name"),
        ({"name": "a@sha256:1", "source": "registry"}, "a@sha256:1 in images_list is not an image name"),
        ({**ARCHIVED, "name": f"b@sha256:{64 * '0'}"}, "is not an image name: write repository:tag"),
        (
            {"name": "b:1", "source": "archive", "pth": "/srv/b.tar"},
            "b:1 in images_list has the key pth, which means nothing there: choose one of name, source, pull",
        ),
        (
            {**ARCHIVED, "remote_src": "no way"},
            "has a wrong value of remote_src 'no way': give true or false",
        ),
        ({**PULLED, "pull": "never"}, "has a wrong value of pull 'never': choose not_present, always"),
        (
            {**BUILT, "build": {"path": "/srv/c", "arg": {}}},
            "c:1 in images_list has the key build.arg, which means nothing there: choose one of build.path, ",
        ),
        (
            {**BUILT, "build": {"path": "/srv/c", "args": "secret"}},
            "has a wrong value of build.args: give it a dict as",
        ),
    ],
)
def test_invalid_entries_are_refused(entry: Any, words: str) -> None:
    [sentence] = problems_of([entry])
    assert words in sentence


def test_all_invalid_entries_are_reported() -> None:
    assert len(problems_of([{"name": "a:1"}, PULLED, {"name": "b:1", "source": "archive"}, 7])) == 3


def test_list_must_be_a_list() -> None:
    assert "images_list is not a list" in problems_of("a:1")[0]


def test_same_name_from_different_sources_is_refused() -> None:
    again = {**ARCHIVED, "name": "docker.io/library/a:1"}
    assert problems_of([PULLED, again]) == [
        "n1: docker.io/library/a:1 in images_list is there twice, from a registry and from the archive "
        "/srv/b.tar: leave one of them"
    ]
    assert "twice, with different settings" in problems_of([PULLED, {**PULLED, "pull": "always"}])[0]
    assert (
        "from the build of /srv/c and from the build of /srv/d"
        in problems_of([BUILT, {**BUILT, "build": {"path": "/srv/d"}}])[0]
    )
    assert checked([PULLED, dict(PULLED)]).problems == []


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"images_network": "10.1"}, ["images_network 10.1 is not a network: write it as address/prefix"]),
        ({"images_port": 0, "images_network": "fd00::/64"}, []),
        ({"images_port": "65536"}, ["images_port 65536 is not a TCP port: choose 1 to 65535"]),
        ({"images_bandwidth": -1}, ["images_bandwidth -1 is less than nothing: give megabits per second"]),
        ({"images_bandwidth": float("nan")}, ["images_bandwidth nan is less than nothing"]),
        ({"images_min_free_bytes": -1}, ["images_min_free_bytes -1 is less than nothing: give bytes"]),
        ({"images_cache_dir": "~/cache"}, ["images_cache_dir ~/cache is relative: write it as an absolute"]),
        ({"images_cache_dir": "/srv/cache", "images_min_free_bytes": 1}, []),
        ({"images_bandwidth": 0.5, "images_network": None, "images_port": "7077"}, []),
    ],
)
def test_how_archives_go_from_node_to_node(variables: dict[str, Any], words: list[str]) -> None:
    found = [problem.sentence for problem in distribution_problems("n1", variables)]
    assert len(found) == len(words)
    assert all(one.startswith(start) for one, start in zip(found, words, strict=True))


def test_images_through_a_mirror_need_one() -> None:
    (problem,) = mirror_problems("n1", {"images_distribution": "mirror", "images_mirror": []})
    assert problem.sentence == (
        "images_distribution mirror has no mirror: "
        "name one in images_mirror, such as http://cache.example.com:5000"
    )
    mirror = ["http://cache:5000"]
    assert mirror_problems("n1", {"images_distribution": "mirror", "images_mirror": mirror}) == []
    assert mirror_problems("n1", {"images_distribution": "direct"}) == []


def test_the_registry_of_a_name() -> None:
    found = {
        "busybox": "docker.io",
        "index.docker.io/rocm/pytorch:1": "docker.io",
        "nvcr.io/nvidia/pytorch:1": "nvcr.io",
        "localhost/a": "localhost",
        "cache:5000/a@sha256:" + 64 * "0": "cache:5000",
    }
    assert {name: registry_of(name) for name in found} == found


def test_names_are_compared_as_docker_shows_them() -> None:
    digest = f"@sha256:{64 * '0'}"
    assert canonical("docker.io/library/debian") == "debian:latest"
    assert canonical("registry.example.com:5000/a/b:1") == "registry.example.com:5000/a/b:1"
    assert canonical(f"docker.io/a/b{digest}") == f"a/b:latest{digest}"
    assert canonical("no name") == "no name"
    assert checked([{"name": f"a/b{digest}", "source": "registry"}]).problems == []


SHA256 = 64 * "a"


@pytest.mark.parametrize(
    ("image", "images"),
    [
        (f"rdma/sriov-plugin@sha256:{SHA256}", []),
        (f"rdma/sriov-plugin:1@sha256:{SHA256}", []),
        ("b:1", [{**ARCHIVED, "sha256": SHA256}]),
        ("docker.io/library/b:1", [{**ARCHIVED, "sha256": SHA256}]),
        ("c:1", [BUILT]),
    ],
)
def test_an_image_that_cannot_become_another_may_have_all_rights(image: str, images: Any) -> None:
    assert unpinned("n1", {"sriov_image": image}, images) == []


@pytest.mark.parametrize(
    ("image", "images"),
    [
        ("rdma/sriov-plugin:latest", []),
        ("rdma/sriov-plugin", None),
        ("rdma/sriov-plugin@sha256:abc", "nonsense"),
        ("a:1", [PULLED]),
        ("b:1", [ARCHIVED, "nonsense"]),
    ],
)
def test_a_tag_may_not(image: str, images: Any) -> None:
    [problem] = unpinned("n1", {"sriov_image": image}, images)
    assert problem.sentence.startswith(
        f"sriov_image {image} names no digest, and what it names runs with all"
    )
    assert "sriov_allow_tag: true" in problem.sentence


def test_the_advice_keeps_the_registry() -> None:
    [problem] = unpinned("n1", {"sriov_image": "registry:5000/rdma/plugin:1"}, [])
    assert "write registry:5000/rdma/plugin@sha256:…, which" in problem.sentence
