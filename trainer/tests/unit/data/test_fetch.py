# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetching from a server of our own that breaks connections, loses files and lies."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from rdm_core.errors import TrainerError
from rdm_trainer.data.indexed_dataset import IndexedWriter
from rdm_trainer.tools.download import corpora
from rdm_trainer.tools.download.fetch import Transfer, fetch

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``files`` with ranges; ``plan`` says how the next answers go wrong."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/f": CONTENT}
        self.version = '"one"'
        self.plan: list[int | str] = []
        self.ranges: list[str | None] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        step = server.plan.pop(0) if server.plan else ""
        wanted = self.headers.get("Range")
        server.ranges.append(wanted)
        content = server.files.get(self.path)
        if content is None or step == "error":
            self.send_error(404 if content is None else 503)
            return
        begin = 0
        if wanted and self.headers.get("If-Range") == server.version and step != "no ranges":
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - begin))
        self.send_header("ETag", server.version)
        self.end_headers()
        self.wfile.write(content[begin : begin + step] if isinstance(step, int) else content[begin:])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server: Server, path: Path, sha256: str | None = SHA256) -> bool:
    return fetch(f"{server.address}/f", path, sha256=sha256, pause=0.0)


def test_download_without_interruption(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []

    def report(transfer: Transfer) -> None:
        seen.append((transfer.done, transfer.total))

    assert fetch(f"{server.address}/f", tmp_path / "d" / "f", sha256=SHA256, report=report)
    assert (tmp_path / "d" / "f").read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["f"]
    assert not get(server, tmp_path / "d" / "f")
    assert len(server.ranges) == 1


def test_interrupted_download_is_continued(server: Server, tmp_path: Path) -> None:
    server.plan = [1000, 500, "error", 1]
    assert get(server, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-", "bytes=1500-", "bytes=1500-", "bytes=1501-"]


def test_later_call_continues_the_download(server: Server, tmp_path: Path) -> None:
    server.plan = [3000, *["error"] * 5]
    with pytest.raises(TrainerError, match=r"cannot be fetched \(503 .*what has arrived is kept") as raised:
        get(server, tmp_path / "f")
    assert raised.value.exit_code == 1
    assert not (tmp_path / "f").exists()
    assert get(server, tmp_path / "f")
    assert server.ranges[-1] == "bytes=3000-"
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_partial_file_of_another_version_is_not_continued(server: Server, tmp_path: Path) -> None:
    server.plan = [3000, *["error"] * 5]
    with pytest.raises(TrainerError):
        get(server, tmp_path / "f")
    server.version, server.files["/f"] = '"two"', CONTENT[::-1]
    assert get(server, tmp_path / "f", None)
    assert (tmp_path / "f").read_bytes() == CONTENT[::-1]


def test_server_without_range_requests_restarts_the_download(server: Server, tmp_path: Path) -> None:
    server.plan = [3000, "no ranges"]
    assert get(server, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_complete_partial_file_needs_no_request(server: Server, tmp_path: Path) -> None:
    server.plan = [3000, *["error"] * 5]
    with pytest.raises(TrainerError):
        get(server, tmp_path / "f")
    (tmp_path / ".f.part").write_bytes(CONTENT)
    assert get(server, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_another_checksum_is_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=rf"its SHA-256 is {SHA256} instead of 0000"):
        get(server, tmp_path / "f", "0" * 64)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "f").write_text("mine")
    with pytest.raises(TrainerError, match="is there, but is not the file from"):
        get(server, tmp_path / "f")
    assert (tmp_path / "f").read_text() == "mine"


def test_bad_addresses_are_one_sentence(server: Server, tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=r"/none answers 404 Not Found: give another place with --mirror"):
        fetch(f"{server.address}/none", tmp_path / "f")
    with pytest.raises(TrainerError, match="must begin with http"):
        fetch("file:///etc/passwd", tmp_path / "f")
    with pytest.raises(TrainerError, match="cannot be fetched"):
        fetch("http://127.0.0.1:1/f", tmp_path / "f", pause=0.0)


def test_bookcorpus_from_a_mirror(server: Server, tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "source", np.uint16) as writer:
        writer.add([1, 2, 3])
        writer.end_document()
    name = "/books/BookCorpusDataset_text_document"
    for suffix in (".bin", ".idx"):
        server.files[name + suffix] = (tmp_path / f"source{suffix}").read_bytes()
    server.plan = [4, "", 20]
    mirror = f"{server.address}/books/"
    files = corpora.download("bookcorpus", tmp_path / "d", mirror=mirror, checksums={}, report=lambda _: None)
    assert [path.read_bytes() for path in files] == [
        (tmp_path / "source.bin").read_bytes(), (tmp_path / "source.idx").read_bytes(),
    ]  # fmt: skip


def test_a_mirror_with_another_vocabulary_is_refused(server: Server, tmp_path: Path) -> None:
    server.files["/gpt2-vocab.json"] = b"{}"
    with pytest.raises(TrainerError, match=r"is not gpt2-vocab\.json: its SHA-256"):
        corpora.download("gpt2-vocab", tmp_path, mirror=server.address, checksums={}, report=lambda _: None)


def test_oscar_with_the_users_checksum(server: Server, tmp_path: Path) -> None:
    server.files["/oscar-1GB.jsonl.xz"] = CONTENT
    args = {"mirror": server.address, "report": lambda _: None}
    with pytest.raises(TrainerError, match="instead of 1111"):
        corpora.download("oscar", tmp_path, checksums={"oscar-1GB.jsonl.xz": "1" * 64}, **args)  # type: ignore[arg-type]
    (path,) = corpora.download("oscar", tmp_path, checksums={"oscar-1GB.jsonl.xz": SHA256}, **args)  # type: ignore[arg-type]
    assert path.read_bytes() == CONTENT


def test_full_disk_while_unpacking_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainerError, match=r"text\.jsonl cannot be written: No space left on device\."):
        corpora._write(tmp_path / "text.jsonl", b"text")
    assert not list(tmp_path.iterdir())
