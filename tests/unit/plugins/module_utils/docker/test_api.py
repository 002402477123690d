"""The parts of the engine's client that need no engine."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker import api as docker_api
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import (
    DockerAPI,
    DockerError,
    DockerProblem,
    DockerUnavailable,
)
from hypothesis import given
from hypothesis import strategies as st


@given(
    frames=st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=8),
    cuts=st.lists(st.integers(min_value=1, max_value=20), min_size=1, max_size=10),
)
def test_streams_are_split_wherever_the_pieces_are_cut(
    frames: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    raw = b"".join(struct.pack(">BxxxL", stream, len(text)) + text for stream, text in frames)
    pieces: list[bytes] = []
    position = 0
    while position < len(raw):
        length = cuts[len(pieces) % len(cuts)]
        pieces.append(raw[position : position + length])
        position += length
    assert docker_api._demultiplex(pieces) == (
        b"".join(text for stream, text in frames if stream == 1),
        b"".join(text for stream, text in frames if stream == 2),
    )


@pytest.mark.parametrize(
    ("engine", "spoken"), [("1.24", "1.24"), ("1.41", "1.41"), ("1.51", "1.51"), ("1.99", "1.51")]
)
def test_older_api_version_is_used(engine: str, spoken: str) -> None:
    api = DockerAPI("/unused")
    api._version = {"ApiVersion": engine, "MinAPIVersion": "1.12"}
    assert api.api_version == spoken


def test_engine_with_a_newer_api_is_accepted() -> None:
    api = DockerAPI("/unused")
    api._version = {"Version": "99.0", "ApiVersion": "2.5", "MinAPIVersion": "2.0"}
    with pytest.raises(DockerUnavailable, match=r"Docker Engine 99\.0 at /unused speaks API 2\.0 and newer"):
        _ = api.api_version


def test_query_values() -> None:
    api = DockerAPI("/unused")
    api._version = {"ApiVersion": "1.41", "MinAPIVersion": "1.12"}
    target = api._versioned("/x", {"all": True, "v": False, "none": None, "filters": {"name": ["a b"]}})
    assert target == "/v1.41/x?all=1&v=0&filters=%7B%22name%22%3A+%5B%22a+b%22%5D%7D"


def test_socket_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    assert docker_api.socket_path() == "/var/run/docker.sock"
    assert docker_api.socket_path("unix:///run/other.sock") == "/run/other.sock"
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/user/1000/docker.sock")
    assert docker_api.socket_path() == "/run/user/1000/docker.sock"
    with pytest.raises(DockerUnavailable, match="not the address of a unix socket"):
        docker_api.socket_path("ssh://node")


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[list[bytes]]:
    """An engine at tmp_path/s that sends these bytes, one item per request, and then breaks off."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    queue: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(queue.pop(0))
                connection.shutdown(socket.SHUT_WR)
                # Unread bytes would reset the connection at the end of the answer.
                while connection.recv(65536):
                    pass

    thread = threading.Thread(target=serve)
    thread.start()
    yield queue
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()


VERSION = b'{"ApiVersion":"1.41","MinAPIVersion":"1.12"}'
VERSION_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(VERSION),
    VERSION,
)


def answer(value: object) -> bytes:
    """An answer in JSON."""
    body = json.dumps(value).encode()
    return VERSION_ANSWER.partition(b"Content-Length")[0] + b"Content-Length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


PODMAN_ANSWER = answer(
    {"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine", "Version": "4.9.3"}, {"Name": "Conmon"}]}
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
ONE_LINE = b'd\r\n{"ok": true}\n\r\n'


def test_progress_that_is_complete(tmp_path: Path, answers: list[bytes]) -> None:
    answers += [VERSION_ANSWER, STREAM_HEAD + ONE_LINE + ONE_LINE + b"0\r\n\r\n"]
    assert list(DockerAPI(str(tmp_path / "s")).post_stream("/x", [b"x"])) == [{"ok": True}, {"ok": True}]


@pytest.mark.parametrize("rest", [b"", b'20\r\n{"ok"', ONE_LINE])
def test_progress_that_breaks_off_is_an_error(tmp_path: Path, answers: list[bytes], rest: bytes) -> None:
    answers += [VERSION_ANSWER, STREAM_HEAD + ONE_LINE + rest]
    lines = DockerAPI(str(tmp_path / "s")).post_stream("/x", [b"x"])
    assert next(lines) == {"ok": True}
    with pytest.raises(DockerUnavailable, match="it broke the connection off"):
        list(lines)


def test_a_body_is_read_in_parts(tmp_path: Path, answers: list[bytes]) -> None:
    answers += [VERSION_ANSWER, STREAM_HEAD + ONE_LINE + ONE_LINE + b"0\r\n\r\n"]
    assert b"".join(DockerAPI(str(tmp_path / "s")).get_stream("/x")) == 2 * b'{"ok": true}\n'


@pytest.mark.parametrize("rest", [b"", b'20\r\n{"ok"', ONE_LINE])
def test_a_body_that_breaks_off_is_an_error(tmp_path: Path, answers: list[bytes], rest: bytes) -> None:
    answers += [VERSION_ANSWER, STREAM_HEAD + ONE_LINE + rest]
    with pytest.raises(DockerUnavailable, match="it broke the connection off"):
        list(DockerAPI(str(tmp_path / "s")).get_stream("/x"))


def test_missing_answer_times_out(tmp_path: Path, answers: list[bytes]) -> None:
    answers += [b""]
    with pytest.raises(DockerUnavailable, match="it broke the connection off"):
        DockerAPI(str(tmp_path / "s")).version()


def test_answer_that_is_no_json_is_an_error(tmp_path: Path, answers: list[bytes]) -> None:
    answers += [VERSION_ANSWER, VERSION_ANSWER.replace(VERSION, VERSION[:-1] + b",")]
    with pytest.raises(DockerProblem, match=r"^Docker Engine's answer to GET /v1\.41/info cannot be read: "):
        DockerAPI(str(tmp_path / "s")).get("/info")


def test_podman_answers_as_docker_would(tmp_path: Path, answers: list[bytes]) -> None:
    answers += [PODMAN_ANSWER, answer([network()]), answer([{"id": "1", "driver": "macvlan", **PARENT}])]
    api = DockerAPI(str(tmp_path / "s"))
    assert api.get("/networks")[0]["Options"] == {"parent": "ib0"}
    assert api.podman == "4.9.3"
    assert not api.updates


def network() -> dict[str, object]:
    """Podman's compatible API names no interface below a network."""
    return {"Id": "1", "Name": "ibnet", "Driver": "macvlan", "Options": {}}


PARENT = {"network_interface": "ib0"}


def test_an_error_is_one_sentence() -> None:
    error = DockerError(409, "name is in use\n", "POST /containers/create")
    assert str(error) == "Docker Engine refused POST /containers/create: name is in use (status 409)"
