"""Checks of registry mirrors: each problem names the value and what would work."""

from __future__ import annotations

from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.checks.node import (
    check_node,
)

from tests.unit.plugins.desired_states import wanted
from tests.unit.plugins.node_reports import report
from tests.unit.plugins.plugin_utils.checks.findings import (
    SOCKET,
    podman,
    problems,
    warnings,
)


def test_mirrors() -> None:
    mirror = "http://cache:5000"
    hub = [{"name": "rocm/pytorch:1", "source": "registry"}]
    assert check_node(wanted(images_mirror=[mirror], images_list=hub), report()) == ([], [])
    [sentence] = problems(report(unreachable_mirrors={mirror: "does not answer"}), images_mirror=[mirror])
    assert sentence == f"images_mirror {mirror} does not answer: start it, correct its URL, or leave it out"
    [sentence] = problems(report(), images_mirror=["cache:5000"])
    assert sentence.startswith(
        "images_mirror cache:5000 is not the URL of a mirror: write http(s)://host[:port]"
    )
    [sentence] = problems(
        podman(), network_driver="macvlan", rdm_docker_socket=SOCKET, images_mirror=[mirror]
    )
    assert sentence.startswith("images_mirror is for Docker Engine, and the node has Podman")
    elsewhere = [{"name": "nvcr.io/nvidia/pytorch:1", "source": "registry"}]
    [sentence] = warnings(report(), images_mirror=[mirror], images_list=elsewhere)
    assert sentence.endswith(
        "images_mirror is of no use here: it has mirrors of docker.io only, and nvcr.io/nvidia/pytorch:1 is "
        "from elsewhere; name the mirror in the image's name instead"
    )
    [sentence] = warnings(with_containerd(), images_mirror=[mirror], images_list=elsewhere)
    assert sentence.endswith("; name one as REGISTRY=URL")


def with_containerd(**more: Any) -> Any:
    """A report of a node with the containerd image store."""
    found = report(**more)
    return {**found, "docker": {**found["docker"], "version": "28.5.2", "image_store": "containerd"}}


def test_mirrors_of_named_registries() -> None:
    mirror = "nvcr.io=https://harbor.example.com/nvcr"
    images = [{"name": "nvcr.io/nvidia/pytorch:1", "source": "registry"}]
    assert check_node(wanted(images_mirror=[mirror], images_list=images), with_containerd()) == ([], [])
    installs = wanted(images_mirror=[mirror], docker_engine_install=True)
    assert check_node(installs, report(docker=None, docker_state="absent")).problems == []
    for found, ending in (
        (report(docker_image_store="classic"), "27.4.1 with the classic one"),
        (
            with_containerd() | {"docker": report()["docker"] | {"image_store": "containerd"}},
            "containerd one",
        ),
    ):
        [sentence] = problems(found, images_mirror=["http://cache:5000", mirror])
        assert sentence.startswith(
            f"images_mirror {mirror} needs Docker Engine 28.0 or newer with the containerd"
        )
        assert sentence.endswith(f"{ending}: write the mirror into the image's name")
    [sentence] = problems(
        report(docker_image_store="classic"), images_mirror=["docker.io=https://harbor.example.com/hub"]
    )
    assert sentence.endswith("with the classic one: leave docker.io= and a path out")
    [sentence] = problems(
        with_containerd(), images_mirror=["docker.io=https://harbor.example.com/hub", "http://cache:5000"]
    )
    assert sentence.startswith("images_mirror names mirrors with docker.io= and without it")
    path = "/etc/docker/certs.d/nvcr.io/hosts.toml"
    [sentence] = problems(with_containerd(foreign_mirror_files={"nvcr.io": path}), images_mirror=[mirror])
    assert sentence == (
        f"{path} was not written by rdm-provision for this engine, and images_mirror names mirrors of "
        "nvcr.io: name them in that file, or remove it"
    )
    [sentence] = problems(
        with_containerd(unreachable_mirrors={mirror: "does not answer"}), images_mirror=[mirror]
    )
    assert sentence.startswith(f"images_mirror {mirror} does not answer: start it")
