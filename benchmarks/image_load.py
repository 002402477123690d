# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how long an engine takes to get an image out of an archive, as ratios to `docker load`.

Run `.venv/bin/python benchmarks/image_load.py --engine SOCKET` as root; it prints a table for docs/images.md.
The engine needs the classic image store, must listen at the socket itself (not through systemd), and may
have no image of the name that is loaded. Ways:

- `docker load`: the command.
- `image_archive`: as the module does, with its inspection of an archive that it has not seen before.
- `pull`: from a registry on 127.0.0.1 that sends the layers out of the archive, so that the engine unpacks
  one layer while it gets the next ones. With `decompressed` the registry also decompresses them, in a thread
  for each layer.
"""

from __future__ import annotations

import argparse
import hashlib
import http.server
import io
import json
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.tables import markdown  # noqa: E402
from rdm_provision import environment  # noqa: E402

environment.make_importable()

from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI  # noqa: E402
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import (  # noqa: E402
    index_archive,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_load import (  # noqa: E402
    load_chunks,
)

NAME, TAG = "rdm-benchmark-load", "1"
FILE_BYTES = 64 * 1024
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
TAR = {"Content-Type": "application/x-tar"}


class Cost(NamedTuple):
    """What one way took once, in seconds.

    Attributes:
        wall: until the image was there.
        cpu: of the engine and of this program, with their children.
        sent: until the engine had the whole archive, and its CPU seconds until then; 0 where unknown.
    """

    wall: float
    cpu: float
    sent: tuple[float, float] = (0, 0)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engine", required=True, help="path of the engine's socket")
    parser.add_argument("--size", type=int, default=2000, help="MB of the uncompressed layers")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    api = DockerAPI(options.engine, timeout=600)
    rows = [
        ["archive", "way", "time / docker load", "CPU / docker load", "until it has the archive: time", "CPU"]
    ]
    with tempfile.TemporaryDirectory() as directory:
        for compression, path in write_archives(Path(directory), options.size, options.layers).items():
            ways = ["docker load", "image_archive", "pull"]
            ways += ["pull, decompressed"] if compression == "gzip" else []
            costs: dict[str, list[Cost]] = {way: [] for way in ways}
            for _round in range(options.rounds):
                for way in random.sample(ways, len(ways)):
                    costs[way].append(measure(api, way, path))
                    print(compression, way, costs[way][-1], file=sys.stderr, flush=True)
            rows += [[f"{compression} layers", *row] for row in table_rows(costs)]
    print(markdown(rows, 2))


def table_rows(costs: dict[str, list[Cost]]) -> Iterator[list[str]]:
    """Yield a row for each way: medians compared with `docker load`, then shares of the way's own time."""
    base = [statistics.median(values) for values in times(costs["docker load"])]
    for way, own in costs.items():
        ratios = [statistics.median(values) / unit for values, unit in zip(times(own), base, strict=True)]
        parts = [[part / whole for part, whole in zip(cost.sent, cost[:2], strict=True)] for cost in own]
        shares = [statistics.median(values) for values in zip(*parts, strict=True)]
        yield [
            way,
            *(f"{ratio:.2f}" for ratio in ratios),
            *(f"{share:.2f}" if share else "" for share in shares),
        ]


def times(costs: Sequence[Cost]) -> tuple[list[float], list[float]]:
    """Return the wall and the CPU seconds of each measurement."""
    return [cost.wall for cost in costs], [cost.cpu for cost in costs]


def measure(api: DockerAPI, way: str, path: Path) -> Cost:
    """Let the engine get the image in one way, and remove it again."""
    subprocess.run(["sync"], check=True)
    began, cpu = time.monotonic(), cpu_s(api)
    sent: list[tuple[float, float]] = []
    if way == "docker load":
        command = ["docker", "--host", f"unix://{api.socket}", "load", "--quiet", "--input", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    elif way == "image_archive":
        index = index_archive(str(path))

        def chunks() -> Iterator[bytes]:
            yield from load_chunks(str(path), index)
            sent.append((time.monotonic() - began, cpu_s(api) - cpu))

        for _line in api.post_stream("/images/load", chunks(), TAR, quiet=True):
            pass
    else:
        pull(api, path, decompress=way.endswith("decompressed"))
    cost = Cost(time.monotonic() - began, cpu_s(api) - cpu, *sent)
    api.delete(f"/images/{NAME}:{TAG}")  # fails if it is not there
    return cost


def cpu_s(api: DockerAPI) -> float:
    """Return the CPU seconds that the engine and this program have used, with their ended children."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(api.socket)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    text = Path(f"/proc/{struct.unpack('3i', peer)[0]}/stat").read_text()
    ticks = sum(int(field) for field in text.rpartition(")")[2].split()[11:15])
    return ticks / os.sysconf("SC_CLK_TCK") + sum(os.times()[:4])


# ---- archives


def write_archives(directory: Path, size: int, layers: int) -> dict[str, Path]:
    """Write an image twice, as `docker save` does (plain layers) and with gzip layers; return their paths.

    Half of each file's bytes are random, the others repeat.

    Args:
        directory: for the archives.
        size: MB of all layers.
        layers: how many.
    """
    half = FILE_BYTES // 2
    paths = {compression: directory / f"{compression}.tar" for compression in ("plain", "gzip")}
    with tarfile.open(paths["plain"], "w") as plain, tarfile.open(paths["gzip"], "w") as packed:
        diff_ids, blobs = [], []
        for layer in range(layers):
            content = io.BytesIO()
            with tarfile.open(fileobj=content, mode="w") as tar:
                for number in range(size * 10**6 // layers // FILE_BYTES):
                    add(
                        tar,
                        f"{layer}/{number % 100}/{number}",
                        os.urandom(half) + bytes([number % 251]) * half,
                    )
            data = content.getvalue()
            compressor = zlib.compressobj(6, zlib.DEFLATED, 31)
            blob = compressor.compress(data) + compressor.flush()
            diff_ids.append("sha256:" + hashlib.sha256(data).hexdigest())
            blobs.append("blobs/sha256/" + hashlib.sha256(blob).hexdigest())
            add(plain, f"{layer}/layer.tar", data)
            add(packed, blobs[-1], blob)
        config = json.dumps(
            {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}}
        )
        for tar, members in ((plain, [f"{layer}/layer.tar" for layer in range(layers)]), (packed, blobs)):
            manifest = [{"Config": "config.json", "RepoTags": [f"{NAME}:{TAG}"], "Layers": members}]
            add(tar, "config.json", config.encode())
            add(tar, "manifest.json", json.dumps(manifest).encode())
    return paths


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a file to a tar."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


# ---- a registry


class Blob(NamedTuple):
    """A layer in an archive: where it begins, its bytes there, and whether to send it decompressed."""

    offset: int
    size: int
    decompress: bool


def pull(api: DockerAPI, path: Path, decompress: bool) -> None:
    """Pull the image from a registry in this process, and give it its name."""
    with tarfile.open(path) as tar:
        members = {member.name: member for member in tar}
        entry = json.load(tar.extractfile("manifest.json") or io.BytesIO())[0]
        config = (tar.extractfile(entry["Config"]) or io.BytesIO()).read()
    blobs: dict[str, Any] = {"sha256:" + hashlib.sha256(config).hexdigest(): config}
    layers = []
    for diff_id, name in zip(json.loads(config)["rootfs"]["diff_ids"], entry["Layers"], strict=True):
        digest = "sha256:" + name[-64:] if name.startswith("blobs/") and not decompress else diff_id
        blobs[digest] = Blob(members[name].offset_data, members[name].size, decompress)
        media = "application/vnd.docker.image.rootfs.diff.tar.gzip"
        layers.append({"mediaType": media, "digest": digest, "size": members[name].size})
    media = "application/vnd.docker.container.image.v1+json"
    described = {"mediaType": media, "digest": next(iter(blobs)), "size": len(config)}
    manifest = json.dumps(
        {"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": layers}
    ).encode()
    digest = "sha256:" + hashlib.sha256(manifest).hexdigest()

    class Registry(http.server.BaseHTTPRequestHandler):
        """The part of the registry's API that the engine uses for a pull."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """Send a manifest or a blob."""
            found = {"": b"{}", digest: manifest, **blobs}[self.path.rpartition("/")[2]]
            length = len(found) if isinstance(found, bytes) else 0 if found.decompress else found.size
            self.send_response(200)
            self.send_header("Content-Type", MANIFEST)
            self.send_header("Docker-Content-Digest", digest)
            self.send_header(*(("Content-Length", str(length)) if length else ("Connection", "close")))
            self.end_headers()
            if self.command == "HEAD":
                return
            if isinstance(found, bytes):
                self.wfile.write(found)
                return
            with path.open("rb") as file:
                file.seek(found.offset)
                if not found.decompress:
                    self.connection.sendfile(file, found.offset, found.size)
                    return
                stream, left = zlib.decompressobj(31), found.size
                while data := file.read(min(left, 1 << 20)):
                    left -= len(data)
                    self.wfile.write(stream.decompress(data))

        do_HEAD = do_GET  # noqa: N815  # http.server finds it by this name

        def log_message(self, *_arguments: Any) -> None:
            """Write nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        name = f"127.0.0.1:{server.server_port}/image"
        for _line in api.post_stream("/images/create", [], fromImage=name, tag=digest):
            pass
        api.post(f"/images/{name}@{digest}/tag", repo=NAME, tag=TAG)
        api.delete(f"/images/{name}@{digest}")
        server.shutdown()


if __name__ == "__main__":
    main()
