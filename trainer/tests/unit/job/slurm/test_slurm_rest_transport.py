# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections to slurmrestd, with a small server in its place; test_slurm_rest.py uses a real server."""

from __future__ import annotations

import contextlib
import http.server
import json
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdm_job.slurm.accounting import Accounting
from rdm_job.slurm.commands import SlurmError
from rdm_job.slurm.rest import Rest
from tests.unit.job.slurm.test_slurm_rest_forms import jwt

SPECIFICATION: dict[str, Any] = {"paths": {"/slurm/v0.0.42/job/submit": {}}}
TOKEN = jwt(sun="me")


class Handler(http.server.BaseHTTPRequestHandler):
    """Sends the server's answers, and records the requests."""

    server: Any

    def do_GET(self) -> None:
        self.server.shown.append(
            (self.path, self.headers["X-SLURM-USER-NAME"], self.headers["X-SLURM-USER-TOKEN"])
        )
        status, answer = self.server.answers.get(self.path, (404, {}))
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def address_string(self) -> str:
        return "test"


class UnixServer(socketserver.ThreadingUnixStreamServer):
    """The same server at a Unix socket."""


@contextlib.contextmanager
def running(server: Any, answers: dict[str, Any]) -> Iterator[Any]:
    """Serve the specification and some answers until the context ends."""
    server.answers = {"/openapi/v3": (200, SPECIFICATION), **answers}
    server.shown = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("SLURM_JWT", raising=False)
    path = tmp_path / "jwt"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return str(path)


def test_unix_socket_is_queried_with_the_token_in_a_header(tmp_path: Path, token_file: str) -> None:
    jobs = "/slurm/v0.0.42/jobs"
    with running(
        UnixServer(str(tmp_path / "rest"), Handler), {jobs: (200, {"jobs": [], "errors": []})}
    ) as server:
        client = Rest(f"unix:{tmp_path}/rest", token_file)
        assert client.queue() == []
        # Without slurmdbd.
        assert client.recorded(7) is None
    assert server.shown[:2] == [("/openapi/v3", "me", TOKEN), (jobs, "me", TOKEN)]


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (401, {}, "does not take the token in FILE: make another with scontrol token."),
        (511, {}, "does not take the token in FILE: make another with scontrol token."),
        (502, {"pings": []}, "says 'status 502': Slurm's controller does not answer it, or does not take"),
        (500, {"errors": [{"error": "Invalid qos"}]}, "says: Invalid qos."),
        (200, {"errors": [{"error": "Unable to contact slurm controller"}]}, "says: Unable to contact"),
        (200, [], "says: status 200."),
        (200, {"pings": []}, "answers in a form that is not known."),
    ],
)
def test_refusal_is_one_sentence_without_the_token(
    token_file: str, status: int, answer: Any, message: str
) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with running(server, {"/slurm/v0.0.42/jobs": (status, answer)}), pytest.raises(SlurmError) as caught:
        Rest(f"http://127.0.0.1:{server.server_port}", token_file).queue()
    assert message.replace("FILE", token_file) in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_accounting_in_an_unknown_format_has_no_accounts(token_file: str) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    answers: dict[str, Any] = {"/slurmdb/v0.0.42/associations": (200, {"pings": []})}
    with running(server, answers):
        assert Rest(f"http://127.0.0.1:{server.server_port}", token_file).accounting() == Accounting()


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example"])
def test_invalid_host_name_is_one_sentence(token_file: str, host: str) -> None:
    with pytest.raises(SlurmError) as caught:
        Rest(f"http://{host}:6820", token_file).queue()
    assert str(caught.value) == f"slurmrestd at http://{host}:6820 has a name that no host can have."


def test_server_with_an_untrusted_certificate_gets_no_token(tmp_path: Path, token_file: str) -> None:
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-days",
        "1",
    ]
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run([*words, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    client = Rest(f"https://localhost:{server.server_port}", token_file)
    refused = pytest.raises(SlurmError, match=r"does not answer: .*certificate verify failed")
    with running(server, {}) as served, refused:
        client.queue()
    assert served.shown == []


def test_server_without_a_known_api_version_is_named(token_file: str) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    answers: dict[str, Any] = {"/openapi/v3": (200, {"paths": {"/slurm/v0.0.44/job/submit": {}}})}
    client = Rest(f"http://127.0.0.1:{server.server_port}", token_file)
    refused = pytest.raises(SlurmError, match=r"speaks none of v0\.0\.38, v0\.0\.40, v0\.0\.41, v0\.0\.42")
    with running(server, answers), refused:
        client.queue()
