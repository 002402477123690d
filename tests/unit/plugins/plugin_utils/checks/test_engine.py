"""Checks of the engine, its images and its disk: each problem names the value and what would work."""

from __future__ import annotations

from typing import Any

import pytest
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


@pytest.mark.parametrize(
    ("state", "hint"),
    [
        ("absent", "install Docker"),
        ("stopped", "start the Docker daemon"),
        ("paused", "let the Docker daemon go on"),
        ("forbidden", "add the user to group docker"),
    ],
)
def test_node_whose_engine_cannot_be_used_is_refused(state: str, hint: str) -> None:
    found = report(docker=None, docker_state=state, docker_error="no engine answers at /var/run/docker.sock.")
    [sentence] = problems(found)
    assert sentence.startswith("no engine answers at /var/run/docker.sock: " + hint)


@pytest.mark.parametrize("state", ["absent", "stopped"])
def test_an_engine_may_be_at_another_socket(state: str) -> None:
    found = report(docker=None, docker_state=state, docker_error="no engine answers at /run/nope.sock")
    [sentence] = problems(found, rdm_docker_socket="/run/nope.sock")
    assert sentence.startswith(
        "no engine answers at /run/nope.sock: correct rdm_docker_socket if /run/nope.sock is the wrong path, "
    )
    assert "docker_engine_install" not in sentence, "that one would answer elsewhere"
    [sentence] = problems(found)
    assert sentence.endswith(
        "set docker_engine_install: true, or say where its socket is with rdm_docker_socket"
    )


ROOTLESS = {"kind": "rootless", "name": "ops", "user": "ops", "address": "/run/user/1000/docker.sock"}
CONTEXT = {"kind": "context", "name": "big", "user": "ops", "address": "/srv/docker.sock"}
FAR = {"kind": "context", "name": "far", "user": "ops", "address": "ssh://ops@far"}


def test_another_engine_is_named_where_the_configured_one_is_missing() -> None:
    absent = {"docker": None, "docker_state": "absent", "docker_error": "no engine answers"}
    [sentence] = problems(report(**absent, other_engines=[ROOTLESS]), network_driver="bridge")
    assert sentence.startswith(
        "no engine answers; user ops has a rootless one at /run/user/1000/docker.sock: "
    )
    assert "set rdm_docker_socket: /run/user/1000/docker.sock, or install" in sentence
    [sentence] = problems(report(**absent, other_engines=[ROOTLESS]))
    assert "rootless one at" in sentence
    assert "rdm_docker_socket" not in sentence, "it could not make the network"
    [sentence] = problems(report(**absent, other_engines=[CONTEXT]))
    assert "the engine of ops's Docker context big is at /srv/docker.sock: set rdm_docker_socket:" in sentence
    [sentence] = problems(report(**absent, other_engines=[FAR]))
    assert "the engine of ops's Docker context far is not on this node: install Docker" in sentence
    assert problems(report(**absent, other_engines=[ROOTLESS]), docker_engine_install=True) == []


def test_a_users_other_context_is_a_warning_if_the_engine_answers() -> None:
    found = report(docker_socket="/var/run/docker.sock", other_engines=[ROOTLESS, CONTEXT])
    assert problems(found) == []
    [sentence] = warnings(found)
    assert "Docker context big is at /srv/docker.sock, and the cluster is on /var/run/docker.sock" in sentence


def test_a_rootless_engine_has_no_interface_of_the_node() -> None:
    found = report(docker_socket="/run/user/1000/docker.sock", docker_security_options=["rootless"])
    [sentence] = problems(found)
    assert sentence.startswith(
        "the engine at /run/user/1000/docker.sock is rootless, and network_driver macvlan"
    )
    assert problems(found, network_driver="bridge") == []


def test_podman_is_used_where_its_socket_is_named_and_nowhere_else() -> None:
    assert problems(podman(), network_driver="macvlan", rdm_docker_socket=SOCKET) == []
    [sentence] = problems(podman(socket="/run/docker.sock"), network_driver="macvlan")
    assert sentence == (
        "Podman 4.3.1 answers at /run/docker.sock, not a Docker Engine: set rdm_docker_socket: "
        "/run/podman/podman.sock to use Podman, or install Docker Engine 20.10 or newer"
    )


@pytest.mark.parametrize(
    ("found", "want", "sentence"),
    [
        (
            podman(),
            {"network_driver": "sriov"},
            "network_driver sriov cannot be had: Podman 4.3.1 takes no network plugins of Docker's: "
            "choose network_driver bridge or macvlan, or use a Docker Engine",
        ),
        (
            podman(),
            {"network_driver": "ipvlan"},
            "network_driver ipvlan cannot be had: Podman 4.3.1 lacks it: "
            "choose network_driver bridge or macvlan, or use a Docker Engine",
        ),
        (podman("4.2.0"), {}, "Podman 4.2.0 is too old: install Podman 4.3 or newer"),
        (
            podman(security_options=["rootless"]),
            {"network_driver": "bridge"},
            "Podman 4.3.1 runs as a user: set rdm_docker_socket: /run/podman/podman.sock, which is root's, "
            "and leave rdm_become true",
        ),
        (
            podman("5.3.2"),
            {"accelerator": "cuda"},
            "rdm_accelerator cuda cannot be had: the Docker-compatible API of Podman 5.3.2 gives out no "
            "NVIDIA GPUs: install Podman 5.4 or newer, or use a Docker Engine",
        ),
    ],
)
def test_settings_that_podman_lacks_are_refused(found: Any, want: dict[str, Any], sentence: str) -> None:
    assert sentence in problems(found, **{"network_driver": "macvlan", "rdm_docker_socket": SOCKET, **want})


def test_missing_engine_is_no_problem_when_it_will_be_installed() -> None:
    absent = report(docker=None, docker_state="absent", docker_error="none", python_requests=False)
    assert problems(absent, docker_engine_install=True) == []
    assert problems(absent, docker_engine_install=True, rdm_docker_socket="/run/docker.sock") == []
    assert problems(absent, docker_engine_install=True, rdm_docker_socket=SOCKET) == []
    [sentence] = problems(absent, docker_engine_install=True, rdm_docker_socket="/srv/docker.sock")
    assert "rdm_docker_socket /srv/docker.sock is not where an engine that docker_engine_install" in sentence
    assert problems(report(docker=None, docker_state="forbidden"), docker_engine_install=True) != []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"docker_version": "19.03.15", "docker_api_version": "1.40"}, "Docker Engine 19.03.15 is too old"),
        ({"docker_version": "20.10.5+dfsg1", "docker_api_version": "1.40"}, "Docker API 1.40 is too old"),
        ({"docker_version": "unknown"}, "Docker Engine unknown is too old"),
    ],
)
def test_old_engine_is_refused(changes: dict[str, str], words: str) -> None:
    [sentence] = problems(report(**changes))
    assert sentence == f"{words}: install Docker Engine 20.10 or newer"


def test_missing_python_package_is_refused() -> None:
    [sentence] = problems(report(python_requests=False))
    assert sentence.endswith("install python3-requests")


def test_findings_of_the_node_are_passed_on() -> None:
    found = report(
        findings=[
            {"level": "error", "what": "x", "text": "it burns."},
            {"level": "warning", "what": "y", "text": "it is warm"},
        ]
    )
    assert problems(found) == ["it burns"]
    assert warnings(found) == ["node1: it is warm."]


def test_remapped_users_are_refused_unless_the_container_is_left_out() -> None:
    found = report(docker_security_options=["seccomp", "userns"])
    [sentence] = problems(found)
    assert sentence.startswith("userns-remap of the engine hides the cluster's keys")
    assert "set container_userns_mode: host" in sentence
    assert problems(found, container_userns_mode="host") == []


def test_mounts_of_the_user_under_selinux_are_a_warning() -> None:
    found = report(docker_security_options=["selinux"])
    mounts: dict[str, Any] = {"container_ipc_mode": "private", "container_volumes": ["/data:/d", "/more:/m"]}
    [sentence] = warnings(found, **mounts)
    assert "SELinux may keep the container from /data, /more of container_volumes" in sentence
    assert warnings(found) == []
    assert warnings(report(), **mounts) == []


def test_log_driver_that_cannot_be_read_is_refused() -> None:
    found = report(docker_log_driver="none")
    [sentence] = problems(found, container_sshd=True)
    assert sentence.startswith("the engine's log driver none keeps no line of a container's log")
    assert problems(found) == problems(report(docker_log_driver="journald"), container_sshd=True) == []


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("read-only", "is on a file system that is read-only: mount"),
        ("full", "full: free"),
        ("forbidden", "may"),
    ],
)
def test_a_directory_that_cannot_be_written_to_is_refused(why: str, words: str) -> None:
    found = report()
    found["config_dir"] = {"path": "/etc/rdm", "why": why}
    [sentence] = problems(found)
    assert sentence.startswith("/etc/rdm ")
    assert words in sentence


def test_full_disk_is_refused() -> None:
    [sentence] = problems(report(), images_min_free_bytes=200 * 2**30)
    assert sentence.startswith("/var/lib/docker has 100.0 GiB free, and images need 200.0 GiB")
    assert problems(report(), images_min_free_bytes=100 * 2**30) == []
    unknown = report(disk={"path": "/var/lib/docker", "total": 0, "free": 0})
    assert problems(unknown, images_min_free_bytes=1) == []


def archive(**more: Any) -> dict[str, Any]:
    sound = {"path": "/srv/a.tar", "problem": "", "hint": "", "unpacked": 0, "new_layers": {}}
    return {**sound, **more}


def test_bad_archive_is_refused() -> None:
    found = report()
    found["archives"] = [
        archive(problem="/srv/a.tar does not exist", hint="put it there"),
        archive(),
        archive(problem="'x y' is not an image name", hint="write repository:tag"),
    ]
    assert [tuple(problem) for problem in check_node(wanted(), found).problems] == [
        ("node1", "/srv/a.tar", "does not exist", "put it there"),
        ("node1", "", "'x y' is not an image name", "write repository:tag"),
    ]


def test_disk_must_have_room_for_all_archives_together() -> None:
    large = archive(unpacked=80 * 2**30, new_layers={"sha256:1": 40 * 2**30})
    found = report()
    found["archives"] = [large]
    assert problems(found) == [], "the containerd store takes the layers from the stream"
    found["archives"] = [archive(unpacked=60 * 2**30, new_layers={"sha256:1": 60 * 2**30})]
    [sentence] = problems(found)
    assert "needs 120.0 GiB" in sentence, "and keeps them as blobs, too"
    found["archives"], found["docker"]["image_store"] = [large], "classic"
    [sentence] = problems(found)
    assert sentence.startswith(
        "/var/lib/docker has 100.0 GiB free, and loading the image archives needs 120.0 GiB: "
        "free some space there (docker image prune)"
    )
    found["archives"] = [archive(unpacked=30 * 2**30, new_layers={"sha256:1": 30 * 2**30})]
    assert problems(found) == []
    found["archives"].append(archive(unpacked=40 * 2**30, new_layers={"sha256:2": 40 * 2**30}))
    assert len(problems(found)) == 1
    found["disk"]["free"], found["archives"] = 2**20, [archive(unpacked=3 * 2**19)]
    assert "has 1.0 MiB free, and loading the image archives needs 1.5 MiB" in problems(found)[0]


def test_image_without_a_source_must_exist_on_the_node() -> None:
    found = report(docker_images=[{"id": "sha256:1", "tags": ["mine:1"]}, {"id": "sha256:2", "tags": []}])
    assert problems(found, container_image="docker.io/library/mine:1", image_listed=False) == []
    assert problems(found, container_image="other:1", image_listed=True) == []
    assert problems(found, container_image=f"other@sha256:{64 * '0'}", image_listed=False) == []
    assert problems(found, container_image="other:1", image_listed=False) == [
        "container_image other:1 is not on the node, and images_list is empty: list it in images_list, or "
        "load it there"
    ]
