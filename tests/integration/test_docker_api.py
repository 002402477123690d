"""The client of the engine's API, against a real engine. test_container_exec.py has what a command gets."""

from __future__ import annotations

import resource
import socket
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import (
    DockerAPI,
    DockerError,
    DockerTimeout,
    DockerUnavailable,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import remove_container

from tests.integration.engine import Engine


@pytest.fixture(scope="module")
def container(engine: Engine, busybox_image: str) -> Iterator[str]:
    """A running container."""
    spec = {"Image": busybox_image, "HostConfig": {"NetworkMode": "none", "Init": True}}
    name = "rdm-test-exec"
    engine.api.post("/containers/create", spec, name=name)
    engine.api.post(f"/containers/{name}/start")
    yield name
    remove_container(engine.api, name)


def test_get_returns_json_and_text(engine: Engine, container: str) -> None:
    assert engine.api.get("/_ping") == "OK"
    assert engine.api.get(f"/containers/{container}/json")["State"]["Running"] is True


def test_filters_are_sent_as_json(engine: Engine, container: str) -> None:
    found = engine.api.get("/containers/json", filters={"name": [container]})
    assert [entry["Names"] for entry in found] == [[f"/{container}"]]
    assert engine.api.get("/containers/json", filters={"name": ["nothing-of-this-name"]}) == []


def test_post_and_delete_return_none_for_an_empty_answer(engine: Engine) -> None:
    network = engine.api.post("/networks/create", {"Name": "rdm-test-api", "Driver": "bridge"})
    assert engine.api.delete(f"/networks/{network['Id']}") is None


def test_an_error_carries_status_and_the_engines_words(engine: Engine) -> None:
    with pytest.raises(
        DockerError, match=r"Docker Engine refused GET .*: No such container: nothing"
    ) as caught:
        engine.api.get("/containers/nothing/json")
    assert caught.value.status == 404


def test_exec_reads_much_output(engine: Engine, container: str) -> None:
    result = engine.api.exec(container, ["head", "-c", "3000000", "/dev/zero"], timeout=240)
    assert len(result.stdout) == 3_000_000


def test_exec_gives_a_command_its_input_to_the_end(engine: Engine, container: str) -> None:
    size = 3_000_000
    assert engine.api.exec(container, ["wc", "-c"], timeout=240, stdin=bytes(size)).stdout == b"%d\n" % size
    assert engine.api.exec(container, ["cat"], timeout=240, stdin=b"words\n") == (0, b"words\n", b"")


def test_exec_of_a_command_that_does_not_read_its_input(engine: Engine, container: str) -> None:
    began = time.monotonic()
    for _ in range(8):
        ended = engine.api.exec(
            container, ["sh", "-c", "echo no; exit 3"], timeout=300, stdin=bytes(3_000_000)
        )
        assert ended == (3, b"no\n", b"")
    assert time.monotonic() - began < 300, "the input kept an exec from ending before its deadline"


def test_exec_ends_at_its_deadline(engine: Engine, container: str) -> None:
    began = time.monotonic()
    with pytest.raises(DockerTimeout, match=r"sleep in container rdm-test-exec did not finish within 0\.5 s"):
        engine.api.exec(container, ["sleep", "1000"], timeout=0.5)
    assert time.monotonic() - began < 100


def test_exec_in_a_container_that_does_not_exist(engine: Engine) -> None:
    with pytest.raises(DockerError) as caught:
        engine.api.exec("nothing", ["true"], timeout=5)
    assert caught.value.status == 404


def test_an_upload_does_not_grow_the_process(engine: Engine) -> None:
    size = 200 * 1024 * 1024
    entry = tarfile.TarInfo("large")
    entry.size = size

    def archive() -> Iterator[bytes]:
        yield entry.tobuf()
        block = bytes(1024 * 1024)
        for _ in range(size // len(block)):
            yield block
        yield bytes(2 * tarfile.BLOCKSIZE)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = list(
        engine.api.post_stream("/images/create", archive(), fromSrc="-", repo="rdm-test/large", tag="1")
    )
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert lines[-1]["status"].startswith("sha256:")
    engine.api.delete("/images/rdm-test/large:1")
    assert grown < 16 * 1024  # KiB


def test_a_load_that_fails_in_the_engine_is_an_error(engine: Engine) -> None:
    with pytest.raises(DockerError):
        list(engine.api.post_stream("/images/load", [b"this is no image"] * 10_000, quiet=True))


def test_an_error_of_the_source_reaches_the_caller(engine: Engine) -> None:
    def broken() -> Iterator[bytes]:
        yield bytes(1024)
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="the disk went away"):
        engine.api.post_stream("/images/load", broken())


def test_a_socket_on_which_nothing_listens(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as unused:
        unused.bind(str(path))
    with pytest.raises(DockerUnavailable, match="nothing listens on it"):
        DockerAPI(str(path)).version()


def test_an_engine_that_stays_silent(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(DockerUnavailable, match=r"it stayed silent for 0\.2 s"):
            DockerAPI(str(path), timeout=0.2).version()
