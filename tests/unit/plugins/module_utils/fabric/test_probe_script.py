"""The program that measures, on the loopback network, where every 127.x.y.z answers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import math
import re
import selectors
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.fabric import probe_script

SILENT = "127.0.0.9"


def settings(**changes: Any) -> dict[str, Any]:
    return {
        "source": "",
        "peers": ["127.0.0.2", "127.0.0.3"],
        "tries": 2,
        "deadline": 60.0,
        "timeout": 2.0,
        "port": 1,
        "ssh": [],
        "login": [],
        **changes,
    }


class Clock(selectors.DefaultSelector):
    """Waits for events, and counts only that as time: a machine that stands still makes nothing late."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        began = time.monotonic()
        found = super().select(timeout)
        waited = time.monotonic() - began
        # What has happened comes before the end of the time for it.
        self.now += min(waited, math.inf if timeout is None else timeout) / (2 if found else 1)
        return found


def measure(**changes: Any) -> dict[str, Any]:
    def loop() -> asyncio.AbstractEventLoop:
        clock = Clock()
        made = asyncio.SelectorEventLoop(clock)
        vars(made)["time"] = lambda: clock.now
        return made

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(probe_script.measure(probe_script.Settings(**settings(**changes))))


@pytest.fixture(params=[b"SSH-2.0-test\r\n", b"", b"220 mail\r\n"], ids=["sshd", "closes", "other"])
def listener(request: pytest.FixtureRequest) -> Iterator[tuple[int, bytes]]:
    """A port on 127.0.0.2 that sends a line, and that line."""
    with socket.create_server(("127.0.0.2", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _address = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(request.param)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], request.param
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_peers_that_answer_have_times() -> None:
    result = measure(source="127.0.0.1")
    assert result["answered"] == [2, 2]
    assert all(
        0 < least <= median < 1e6 for least, median in zip(result["min_us"], result["rtt_us"], strict=True)
    )
    assert result["link"] == {"name": "lo", "up": True}
    assert result["errors"] == {}


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make 127.0.0.9 a node that never answers."""

    def send(self: probe_script.Icmp, peer: probe_script.Peer) -> None:
        if peer.address == SILENT:
            peer.sent += 1
        else:
            original_send(self, peer)

    async def connection(address: str, port: int, source: str) -> probe_script.Stream:
        if address == SILENT:
            await asyncio.Event().wait()
        return await original_connection(address, port, source)

    original_send, original_connection = probe_script.Icmp.send, probe_script.connection
    monkeypatch.setattr(probe_script.Icmp, "send", send)
    monkeypatch.setattr(probe_script, "connection", connection)


@pytest.mark.usefixtures("silence")
def test_silent_peer_is_probed_again_until_its_timeout() -> None:
    result = measure(peers=[SILENT, "127.0.0.2"], ssh=[0])
    assert result["rtt_us"][0] is None
    assert result["sent"][0] > 2
    assert result["rtt_us"][1] is not None
    assert result["ssh"] == {"0": "no answer"}


@pytest.mark.usefixtures("silence")
def test_measurement_ends_by_the_deadline() -> None:
    begin = time.monotonic()
    result = measure(peers=[SILENT], deadline=0.3, timeout=60.0, ssh=[0])
    assert time.monotonic() - begin < 50
    assert result["rtt_us"] == [None]
    assert result["ssh"] == {"0": "no answer"}


def test_an_address_that_the_container_does_not_have_is_a_problem() -> None:
    # TEST-NET-1 (RFC 5737) is reserved for examples, so no machine has it.
    assert measure(source="192.0.2.1")["problem"] == "the container does not have the address 192.0.2.1"


def test_kernel_errors_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unreachable(probe_script.Icmp):
        def send(self, peer: probe_script.Peer) -> None:
            peer.error = probe_script.words(OSError(errno.ENETUNREACH, "x"))
            peer.sent += 1

    monkeypatch.setattr(probe_script, "Icmp", Unreachable)
    result = measure(peers=["127.0.0.2"])
    assert result["errors"] == {"0": "network is unreachable"}


def test_without_raw_sockets_connections_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(probe_script, "Icmp", refuse)
    result = measure()
    assert result["method"] == "tcp"
    assert "NET_RAW" in result["note"]
    assert None not in result["rtt_us"]  # port 1 refuses, and a refusal is an answer


def test_an_sshd_is_known_by_its_greeting(listener: tuple[int, bytes]) -> None:
    port, greeting = listener
    expected = {
        b"SSH-2.0-test\r\n": "",
        b"": "connection closed without a greeting",
        b"220 mail\r\n": "something other than an sshd answers",
    }[greeting]
    assert measure(port=port, ssh=[0, 1])["ssh"] == {"0": expected, "1": "connection refused"}


def test_an_sshd_of_a_busy_node_may_greet_after_the_timeout_and_not_after_the_deadline() -> None:
    gone = threading.Event()
    with socket.create_server(("127.0.0.2", 0)) as server:  # its kernel connects, and nobody accepts
        port = server.getsockname()[1]
        hangs = measure(peers=["127.0.0.2"], port=port, ssh=[0], timeout=3.0, deadline=5.0)

        def greet() -> None:
            held = [server.accept()[0]]  # of a client that gave up
            held.append(server.accept()[0])
            gone.wait(4.0)  # longer than the timeout
            for connection in held:
                with connection, contextlib.suppress(OSError):
                    connection.sendall(b"SSH-2.0-test\r\n")

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        slow = measure(peers=["127.0.0.2"], port=port, ssh=[0], timeout=3.0, deadline=60.0)
        gone.set()
    assert re.fullmatch(r"its port is open, and nothing greeted within \d+\.\d s", hangs["ssh"]["0"])
    assert slow["ssh"] == {"0": ""}


def test_a_thousand_peers_are_measured_within_the_deadline() -> None:
    peers = [f"127.1.{index // 250}.{index % 250 + 1}" for index in range(1000)]
    given = probe_script.Settings(**settings(peers=peers, tries=3, deadline=100.0))
    begin = time.monotonic()
    result = asyncio.run(probe_script.measure(given))
    assert time.monotonic() - begin < 110
    assert result["rtt_us"].count(None) == 0


def test_it_runs_from_its_text_alone_with_its_settings_in_pieces() -> None:
    source = Path(probe_script.__file__).read_text(encoding="utf-8")
    text = json.dumps(settings())
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source, text[:20], text[20:]], capture_output=True, check=True
    )
    assert json.loads(done.stdout)["answered"] == [2, 2]


@pytest.mark.parametrize("size", [8, 64])
def test_the_checksum_makes_the_sum_of_a_packet_vanish(size: int) -> None:
    packet = bytes(range(size))
    total = probe_script.checksum(packet)
    assert probe_script.checksum(packet + total.to_bytes(2, "big")) == 0


SSH = """#!/bin/sh
printf '%s\\n' "$*" >> "$0.calls"
case "$*" in
    *127.0.0.2*) exit 0 ;;
    *127.0.0.3*) echo 'root@127.0.0.3: Permission denied (publickey).' >&2; exit 255 ;;
    *127.0.0.4*) [ "$(grep -c 127.0.0.4 "$0.calls")" -ge 2 ] || { echo 'refused' >&2; exit 255; } ;;
    *127.0.0.6*) sleep 3 ;;
    *KexAlgorithms*127.0.0.7*) echo 'Unable to negotiate: no matching key exchange method' >&2; exit 255 ;;
    *127.0.0.7*) exit 0 ;;
    *) exec sleep 60 ;;
esac
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the ssh client that records its arguments."""
    program = tmp_path / "ssh"
    program.write_text(SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "ssh.calls"


@pytest.fixture
def sshd() -> Iterator[int]:
    """A port on all addresses that sends an sshd's banner."""

    class Greeting(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"SSH-2.0-test\r\n")

    with socketserver.ThreadingTCPServer(("", 0), Greeting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_ssh_login_is_tested_and_its_error_reported(ssh: Path, sshd: int) -> None:
    addresses = [f"127.0.0.{number}" for number in (2, 3, 4)]
    found = measure(login=addresses, port=sshd, timeout=60.0, deadline=60.0, peers=[])
    assert found["login"] == {
        "127.0.0.2": "",
        "127.0.0.3": "root@127.0.0.3: Permission denied (publickey)",
        "127.0.0.4": "",
    }
    calls = ssh.read_text().splitlines()
    assert sum("127.0.0.3" in call for call in calls) == 1, "who is refused does not try again"
    assert all("BatchMode=yes" in call and f"-p {sshd}" in call for call in calls)


def test_an_sshd_without_the_cheap_key_exchange_gets_ssh_s_own(ssh: Path, sshd: int) -> None:
    assert measure(login=["127.0.0.7"], port=sshd, timeout=0.0, peers=[])["login"] == {"127.0.0.7": ""}
    assert ["KexAlgorithms" in call for call in ssh.read_text().splitlines()] == [True, False]


def test_a_login_on_a_busy_node_may_outlast_the_timeout_and_not_the_deadline(ssh: Path, sshd: int) -> None:
    slow = measure(login=["127.0.0.6"], port=sshd, peers=[])
    assert slow["login"] == {"127.0.0.6": ""}
    hangs = measure(login=["127.0.0.5"], port=sshd, deadline=5.0, peers=[])
    message = r"its sshd greets, and the login did not end within \d+\.\d s"
    assert re.fullmatch(message, hangs["login"]["127.0.0.5"])


def test_no_login_is_tried_where_no_sshd_greets(ssh: Path) -> None:
    assert measure(login=["127.0.0.2"])["login"] == {"127.0.0.2": "connection refused"}
    assert not ssh.exists()


def test_container_without_ssh_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = measure(login=["127.0.0.2"])
    assert (found["login"], found["note"]) == ({}, "there is no ssh in the container, so no login was tried")
