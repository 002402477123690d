"""Image archives made here and now: what `docker save` writes, and OCI layouts."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]


@dataclass
class MadeImage:
    """An image of one layer per given file system, and its names."""

    layers: list[bytes]
    tags: list[str] = field(default_factory=list)
    config: Json = field(default_factory=lambda: {"Cmd": ["/bin/true"], "Env": ["A=1"]})
    created: str = "2026-01-02T03:04:05.67Z"
    architecture: str = "amd64"

    @property
    def diff_ids(self) -> list[str]:
        return [digest(layer) for layer in self.layers]

    @property
    def config_json(self) -> bytes:
        return json.dumps(
            {
                "created": self.created,
                "architecture": self.architecture,
                "os": "linux",
                "config": self.config,
                "rootfs": {"type": "layers", "diff_ids": self.diff_ids},
            }
        ).encode()

    @property
    def id(self) -> str:
        return digest(self.config_json)


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def tar(members: dict[str, bytes]) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return output.getvalue()


def layer(name: str, size: int = 10) -> bytes:
    """Return a file system of one file."""
    return tar({name: (name.encode() * size)[:size]})


def saved(*images: MadeImage) -> bytes:
    """Return an archive as `docker save` of Docker 20.10 to 24 writes it."""
    members: dict[str, bytes] = {}
    manifest = []
    for image in images:
        paths = [f"{hex_digest[7:]}/layer.tar" for hex_digest in image.diff_ids]
        members.update(zip(paths, image.layers, strict=True))
        config = f"{image.id[7:]}.json"
        members[config] = image.config_json
        manifest.append({"Config": config, "RepoTags": image.tags or None, "Layers": paths})
    members["manifest.json"] = json.dumps(manifest).encode()
    return tar(members)


@dataclass
class Layout:
    """An OCI image layout in the making: blobs, and the entries of index.json."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    entries: list[Json] = field(default_factory=list)

    def blob(self, content: bytes, media_type: str, **more: Any) -> Json:
        name = digest(content)
        self.blobs["blobs/sha256/" + name[7:]] = content
        return {"mediaType": media_type, "digest": name, "size": len(content), **more}

    def manifest(self, image: MadeImage, packing: str = "gzip", **more: Any) -> Json:
        pack = PACKERS[packing]
        value: Json = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": self.blob(image.config_json, "application/vnd.oci.image.config.v1+json"),
            "layers": [
                self.blob(pack(layer), f"application/vnd.oci.image.layer.v1.tar+{packing}")
                for layer in image.layers
            ],
        }
        return self.blob(json.dumps(value).encode(), value["mediaType"], **more)

    def index(self, entries: list[Json], **more: Any) -> Json:
        media_type = "application/vnd.oci.image.index.v1+json"
        content = json.dumps({"schemaVersion": 2, "mediaType": media_type, "manifests": entries}).encode()
        return self.blob(content, media_type, **more)

    def tar(self) -> bytes:
        index = {"schemaVersion": 2, "manifests": self.entries}
        return tar(
            {
                **self.blobs,
                "index.json": json.dumps(index).encode(),
                "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
            }
        )


def oci_layout(image: MadeImage, packing: str = "gzip") -> bytes:
    """Return an OCI layout of one image; its layers are compressed."""
    layout = Layout()
    names = {"org.opencontainers.image.ref.name": image.tags[0]} if image.tags else {}
    layout.entries.append(layout.manifest(image, packing, annotations=names))
    return layout.tar()


def zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-qc"], input=data, check=True, capture_output=True).stdout


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


PACKERS: dict[str, Callable[[bytes], bytes]] = {"plain": bytes, "gzip": gzipped, "zstd": zstd}


def put(directory: Path, data: bytes, name: str = "image.tar") -> str:
    path = directory / name
    path.write_bytes(data)
    return str(path)


def inspected(image: MadeImage, **changes: Any) -> dict[str, Any]:
    """Return what an engine with the classic store shows of an image."""
    return {
        "Id": image.id,
        "Created": image.created,
        "Config": {**image.config, "Hostname": "", "Labels": None},
        "RootFS": {"Type": "layers", "Layers": image.diff_ids},
        **changes,
    }
