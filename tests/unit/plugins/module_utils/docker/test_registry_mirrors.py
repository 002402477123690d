from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker import registry_mirrors
from ansible_collections.rdm.provision.plugins.module_utils.docker.registry_mirrors import KEY

OURS = "http://cache:5000"


def record(before: str, after: str) -> dict[str, Any]:
    return {"mirrors": [OURS], "before": before, "after": after}


@pytest.mark.parametrize(
    "url",
    [
        "http://cache",
        "https://cache.example.com:5000/",
        "http://[fd00::1]:5000",
        "nvcr.io=https://harbor.example.com/nvcr",
        "localhost:5000=http://[fd00::1]:5000/a/v2/",
        "docker.io=http://cache",
    ],
)
def test_urls_that_the_engine_takes(url: str) -> None:
    assert registry_mirrors.is_mirror(url)


@pytest.mark.parametrize(
    "url",
    [
        "cache:5000",
        "http://cache/v2",
        "http://user@cache",
        "ftp://cache",
        "http://",
        "=http://cache",
        "nvcr=http://cache",
        "../nvcr.io=http://cache",
        "_default=http://cache",
        "nvcr.io/nvidia=http://cache",
        "nvcr.io=http://cache/v2/nvcr",
        'nvcr.io=http://cache/"]',
    ],
)
def test_urls_that_the_engine_refuses(url: str) -> None:
    assert not registry_mirrors.is_mirror(url)


def test_entries_of_docker_hub_and_of_other_registries() -> None:
    mirrors = [f"{OURS}/", "nvcr.io=https://harbor/nvcr/", "docker.io=http://other"]
    assert [registry_mirrors.split(one) for one in mirrors] == [
        ("", OURS),
        ("nvcr.io", "https://harbor/nvcr"),
        ("docker.io", "http://other"),
    ]
    assert registry_mirrors.of_docker_hub(mirrors) == [OURS]


@pytest.mark.parametrize("before", ["", '{"live-restore":true}', '{ "registry-mirrors": ["http://other/"] }'])
def test_original_configuration_is_restored_to_the_byte(before: str) -> None:
    after = registry_mirrors.with_mirrors(before, [OURS])
    assert json.loads(after)[KEY][0] == OURS
    assert set(json.loads(before or "{}")) <= set(json.loads(after))
    assert registry_mirrors.without_ours(after, record(before, after)) == before


def test_later_changes_by_others_stay() -> None:
    before = '{"registry-mirrors": ["http://other"]}'
    after = registry_mirrors.with_mirrors(before, [OURS])
    changed = json.dumps({**json.loads(after), "debug": True})
    left = json.loads(registry_mirrors.without_ours(changed, record(before, after)))
    assert left == {"debug": True, KEY: ["http://other"]}


def test_a_run_that_was_killed_before_it_wrote_the_configuration() -> None:
    after = registry_mirrors.with_mirrors("", [OURS])
    assert registry_mirrors.without_ours("", record("", after)) == ""


@pytest.mark.parametrize("text", ["{", "[]", '{"registry-mirrors": "http://x"}'])
def test_a_configuration_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        registry_mirrors.with_mirrors(text, [OURS])


@pytest.mark.parametrize(
    ("status", "problem"), [(200, ""), (401, ""), (404, "does not answer as a registry (/v2/: status 404)")]
)
def test_reachable_mirrors_are_found(status: int, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_mirrors, "_ANSWER_TIMEOUT", 120.0)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/v2/" else 500)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert registry_mirrors.unreachable(f"{address}/nvcr") == problem
    assert registry_mirrors.unreachable(address) == "does not answer (Connection refused)"


def test_a_mirror_may_have_any_authority_that_the_engine_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(registry_mirrors, "CERTIFICATES", str(tmp_path))
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda _self, path: loaded.append(path))
    own = tmp_path / "127.0.0.1:1"
    own.mkdir()
    for name in ("ca.crt", "site.crt", "client.cert", "client.key"):
        (own / name).touch()
    assert registry_mirrors.unreachable("https://127.0.0.1:1") == "does not answer (Connection refused)"
    assert sorted(loaded) == [str(own / "ca.crt"), str(own / "site.crt")]
