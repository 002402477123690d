"""The parts of the engine's client that need no engine."""

from __future__ import annotations

import struct

import pytest
from ansible_collections.rdm.provision.plugins.module_utils import docker_api
from ansible_collections.rdm.provision.plugins.module_utils.docker_api import (
    DockerAPI,
    DockerError,
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
def test_the_older_api_is_spoken(engine: str, spoken: str) -> None:
    api = DockerAPI("/unused")
    api._version = {"ApiVersion": engine, "MinAPIVersion": "1.12"}
    assert api.api_version == spoken


def test_an_engine_from_the_future() -> None:
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


def test_an_error_is_one_sentence() -> None:
    error = DockerError(409, "name is in use\n", "POST /containers/create")
    assert str(error) == "Docker Engine refused POST /containers/create: name is in use (status 409)"
