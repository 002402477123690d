"""Whatever comes in over the socket is answered, and the next request works."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import (
    CREATE_NETWORK,
    GENERIC,
    INFO,
    RESERVE,
)
from ansible_collections.rdm.provision.rdm_sriov import plugin as program
from ansible_collections.rdm.provision.rdm_sriov import server
from ansible_collections.rdm.provision.rdm_sriov.driver import Driver
from ansible_collections.rdm.provision.rdm_sriov.server import LARGEST, Server
from ansible_collections.rdm.provision.rdm_sriov.state import State
from ansible_collections.rdm.provision.rdm_sriov.vfs import (
    NodeVfs,
    Vf,
    VfProblem,
)
from hypothesis import HealthCheck, given, settings

CALLS = [
    *("Plugin.Activate", RESERVE, INFO, CREATE_NETWORK),
    *(
        f"NetworkDriver.{name}"
        for name in (
            *("GetCapabilities", "CreateEndpoint", "EndpointOperInfo", "Join", "Leave", "DeleteEndpoint"),
            *("DeleteNetwork", "DiscoverNew", "ProgramExternalConnectivity", "RevokeExternalConnectivity"),
        )
    ),
]
KEYS = [
    "NetworkID",
    "EndpointID",
    "Address",
    "MacAddress",
    "Interface",
    "Options",
    "IPv4Data",
    "Pool",
    GENERIC,
]
OPTIONS = ["netdevice", "mode", "vlan", "pkey", "privileged", "prefix", "mtu", "rdm.provision.vf"]
# Words that mean something, so that not all is refused at once.
WORDS = st.sampled_from(
    ["n", "m", "e", "ib0", "ib0.3", "sriov", "passthrough", "10.0.0.5/24", "fe80::1/64", "7", ""]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS + OPTIONS), inner, max_size=4)
    ),
    max_leaves=8,
)
REQUESTS = st.fixed_dictionaries(
    {"NetworkID": st.just("n") | VALUES, "EndpointID": st.just("e") | VALUES},
    optional={key: VALUES for key in KEYS if not key.endswith("ID")},
)
HANGS_S = 120.0
NETWORK = {"NetworkID": "n", "Options": {GENERIC: {"netdevice": "ib0"}}, "IPv4Data": [{"Pool": "10.0.0.0/8"}]}


class Always(NodeVfs):
    """Hundred VFs that are all there."""

    def virtual(self, parent: str) -> list[Vf]:
        return [Vf(f"{parent}.{number}", parent, number) for number in range(100)]

    def interface(self, vf: Vf) -> str:
        return vf.key

    def up(self, interface: str) -> None:
        pass

    def isolate(self, vf: Vf, vlan: int, trusted: bool) -> None:
        pass


class Client:
    """Docker's side of the socket."""

    def __init__(self, path: str) -> None:
        self.path = path

    def raw(self, data: bytes) -> bytes:
        """Send bytes, and no more; return what comes back until the plugin closes."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(HANGS_S)
            connection.connect(self.path)
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while part := connection.recv(65536):
                answer += part
            return answer

    def post(self, call: str, body: bytes) -> tuple[int, Any]:
        """Return status and answer of a request."""
        connection = http.client.HTTPConnection("docker", timeout=HANGS_S)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.connect(self.path)
        connection.request("POST", f"/{call}", body)
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        return response.status, answer

    def call(self, name: str, **request: Any) -> Any:
        """Return the answer to a call of the driver."""
        return self.post(f"NetworkDriver.{name}", json.dumps(request).encode())[1]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a short name: a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="rdm-sriov-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def client(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A plugin that serves, with one network."""
    monkeypatch.setattr(server, "_DRAIN_S", HANGS_S)
    state = State(str(directory))
    plugin = Server(str(directory / "p.sock"), Driver(Always(), state, dict))
    thread = threading.Thread(target=plugin.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    client = Client(str(directory / "p.sock"))
    assert client.call("CreateNetwork", **NETWORK) == {}
    yield client
    assert client.post("Plugin.Activate", b"{}") == (200, {"Implements": ["NetworkDriver"]})
    assert set(State(str(directory)).networks) == {"n"}
    plugin.shutdown()
    plugin.server_close()
    assert not (directory / "p.sock").exists()


ENGINE = """
import sys
from tests.unit.rdm_sriov.test_server import Client
print(Client(sys.argv[1]).call("CreateEndpoint", NetworkID="n", EndpointID=sys.argv[2]), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("runs", [True, False])
def test_another_engine_that_looks_for_plugins_is_no_restart_of_those_that_run(
    client: Client, directory: Path, runs: bool
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with contextlib.ExitStack() as stack:
        engines = []
        for name in ("a", "b"):
            argv = [sys.executable, "-c", ENGINE, client.path, name]
            pipes = subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            engines.append(stack.enter_context(pipes))
            assert engines[-1].stdout
            assert b"Interface" in engines[-1].stdout.readline()
        if not runs:
            engines[0].kill()
            engines[0].wait()
        assert client.post("Plugin.Activate", b"{}") == (200, {"Implements": ["NetworkDriver"]})
        client.call("CreateEndpoint", NetworkID="n", EndpointID="c")
        assert set(State(str(directory)).endpoints) == ({"a", "b", "c"} if runs else {"c"})


@pytest.mark.parametrize(
    ("call", "body", "status"),
    [
        ("NetworkDriver.Join", b"{", 400),
        ("NetworkDriver.Join", b"[]", 400),
        ("NetworkDriver.Join", b'"text"', 400),
        ("NetworkDriver.Join", b"\xff\xfe", 400),
        ("NetworkDriver.Join", b"[" * 100_000, 400),
        ("NetworkDriver.Join", b"null", 200),
        ("NetworkDriver.Join", b"", 200),
        ("NetworkDriver.CreateEndpoint", b'{"NetworkID": "n"}', 200),
        ("NetworkDriver.CreateEndpoint", b'{"NetworkID": ["n"], "EndpointID": {}}', 200),
        ("NetworkDriver.CreateNetwork", b'{"NetworkID": "m", "IPv4Data": 7}', 200),
        ("NetworkDriver.Nothing", b"{}", 404),
        ("", b"{}", 404),
        ("../../etc/passwd", b"{}", 404),
    ],
)
def test_invalid_request_gets_an_error(client: Client, call: str, body: bytes, status: int) -> None:
    found, answer = client.post(call, body)
    assert found == status
    assert answer["Err"]


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /Plugin.Activate HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"POST /Plugin.Activate HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /Plugin.Activate HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (LARGEST + 1),
        b"POST /Plugin.Activate HTTP/1.1\r\nContent-Length: 10\r\n\r\n{",
        b"POST /Plugin.Activate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /Plugin.Activate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_invalid_http_does_not_stop_the_server(client: Client, data: bytes) -> None:
    answer = client.raw(data)
    assert not answer or b'"Err"' in answer


@pytest.mark.parametrize("chunked", [False, True])
def test_a_huge_request_that_is_really_sent_is_answered(client: Client, chunked: bool) -> None:
    data = b"x" * (2 * LARGEST)
    head = b"Content-Length: %d\r\n\r\n" % len(data)
    if chunked:
        head = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(data)
    answer = client.raw(b"POST /Plugin.Activate HTTP/1.1\r\n" + head + data)
    assert answer.startswith(b"HTTP/1.1 413")
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"Err": f"a request has at most {LARGEST} bytes"}


def test_slow_sender_of_a_huge_request_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[float] = []

    class Connection:
        """A peer that sends a part of the rest every two seconds."""

        now = 0.0

        def settimeout(self, seconds: float) -> None:
            """Remember how long it may be waited."""
            left.append(seconds)

        def read1(self, _: int) -> bytes:
            """Return a part, after a pause."""
            self.now += 2.0
            if left[-1] < 2.0:
                raise TimeoutError
            return b"x"

    peer = Connection()
    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: peer.now))
    handler: Any = SimpleNamespace(connection=peer, rfile=peer)
    server._Handler._drain(handler)
    assert left == [5.0, 3.0, 1.0]


def test_endless_request_is_closed(client: Client) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(HANGS_S)
        connection.connect(client.path)
        connection.sendall(b"POST /Plugin.Activate HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n")
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            connection.sendall(b"x" * (64 * LARGEST))


def test_a_request_in_chunks_is_read(client: Client) -> None:
    body = b'3\r\n{"x\r\n5\r\n": 1}\r\n0\r\n\r\n'
    answer = client.raw(b"POST /Plugin.Activate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    assert b"NetworkDriver" in answer


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(st.tuples(st.sampled_from(CALLS), REQUESTS), min_size=1, max_size=8))
def test_any_object_is_answered_and_the_state_can_be_read(
    client: Client, directory: Path, requests: list[tuple[str, dict[str, Any]]]
) -> None:
    try:
        for call, request in requests:
            status, answer = client.post(call, json.dumps(request).encode())
            # 500 is a mistake of ours.
            assert (status, isinstance(answer, dict)) == (200, True), answer
        kept = State(str(directory))
        info = client.post(INFO, b"{}")[1]
        assert (kept.lost, sorted(kept.networks), len(kept.endpoints)) == (
            "",
            info["Networks"],
            info["Endpoints"],
        )
    finally:
        for endpoint in State(str(directory)).endpoints:
            client.call("DeleteEndpoint", NetworkID="n", EndpointID=endpoint)
        for network in State(str(directory)).networks:
            client.call("DeleteNetwork", NetworkID=network)
        assert client.call("CreateNetwork", **NETWORK) == {}


def test_hundred_reservations_at_once_are_hundred_vfs(client: Client) -> None:
    def reserve(number: int) -> Any:
        request = {"NetworkID": "n", "Address": f"10.0.1.{number}/8"}
        return client.post(RESERVE, json.dumps(request).encode())[1]

    with ThreadPoolExecutor(100) as pool:
        found = [answer["Vf"]["pci"] for answer in pool.map(reserve, range(100))]
    assert len(set(found)) == 100
    assert reserve(7)["Vf"]["pci"] == found[7]
    assert "no virtual function of ib0 is free" in reserve(101)["Err"]


def test_hundred_concurrent_good_and_bad_requests_are_all_answered(client: Client) -> None:
    run_all = threading.Barrier(100, timeout=HANGS_S)
    bad = [
        ("NetworkDriver.Join", b"{", 400),
        ("NetworkDriver.Nothing", b"{}", 404),
        ("NetworkDriver.Join", b"{}", 200),
    ]

    def send(number: int) -> tuple[bool, bool]:
        """Return whether the answer is what it has to be, and whether it is a VF."""
        if number % 2:
            call, body, status = bad[number // 2 % len(bad)]
        else:
            request = {"NetworkID": "n", "EndpointID": f"e{number}", "Interface": {}}
            call, body, status = "NetworkDriver.CreateEndpoint", json.dumps(request).encode(), 200
        run_all.wait()
        found, answer = client.post(call, body)
        return (found, "Err" in answer) == (status, bool(number % 2)), "Interface" in answer

    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(send, range(100)))
    assert all(right for right, _ in answers)
    assert sum(got for _, got in answers) == 50
    assert client.post(INFO, b"{}")[1]["Endpoints"] == 50


def test_only_its_user_may_talk_to_it(client: Client) -> None:
    assert Path(client.path).stat().st_mode & 0o777 == 0o600


def test_two_plugins_on_one_socket_are_refused(client: Client, directory: Path) -> None:
    with pytest.raises(VfProblem, match="another plugin answers on"):
        Server(client.path, Driver(Always(), State(str(directory)), dict))


def test_unused_socket_is_taken_over(directory: Path) -> None:
    path = str(directory / "old.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as old:
        old.bind(path)
    Server(path, Driver(Always(), State(str(directory)), dict)).server_close()


def test_a_file_instead_of_the_socket_stays(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = directory / "p.sock"
    path.write_text("mine")
    assert program.main(["--socket", str(path), "--state", str(directory / "s")]) == 1
    assert path.read_text() == "mine"
    assert capsys.readouterr().err.count("\n") == 1


def test_two_plugins_with_one_state_are_refused(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = program._lock(str(directory))
    assert program.main(["--socket", str(directory / "p.sock"), "--state", str(directory)]) == 1
    assert "another rdm-sriov keeps its state in" in capsys.readouterr().err
    os.close(lock)
