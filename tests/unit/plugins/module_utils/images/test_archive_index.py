"""What is in an image archive: every format, every damage, and never more memory than a chunk."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import (
    ArchiveIndex,
    ArchiveMissing,
    wanted_images,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive
from hypothesis import given
from hypothesis import strategies as st

from tests.image_archives import (
    PACKERS,
    Layout,
    MadeImage,
    digest,
    layer,
    oci_layout,
    put,
    saved,
    tar,
    zstd,
)


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("make", [saved, oci_layout])
def test_finds_the_image(
    tmp_path: Path, image: MadeImage, packing: str, make: Callable[[MadeImage], bytes]
) -> None:
    data = PACKERS[packing](make(image))
    index = index_archive(put(tmp_path, data), digest=True)
    assert (index.compression, index.size, index.sha256) == (packing, len(data), digest(data)[7:])
    (found,) = index.images
    assert found.ids[0] == image.id
    assert (found.diff_ids, found.tags, found.architecture) == (image.diff_ids, image.tags, "amd64")
    assert index.classic == (make is saved)
    assert ArchiveIndex.from_json(json.loads(json.dumps(index.to_json()))) == index


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("layers", PACKERS)
def test_layers_that_are_compressed_with_zstd_are_found(
    tmp_path: Path, image: MadeImage, packing: str, layers: str
) -> None:
    (found,) = index_archive(put(tmp_path, PACKERS[packing](oci_layout(image, layers)))).images
    assert found.zstd == (layers == "zstd")


def test_a_plain_archive_is_not_read_through(tmp_path: Path, image: MadeImage) -> None:
    """The layers are 50 GB holes in the file: reading them would never end."""
    path = tmp_path / "huge.tar"
    with path.open("wb") as file:
        manifest = [{"Config": image.id[7:] + ".json", "RepoTags": ["huge:1"], "Layers": ["huge/layer.tar"]}]
        member = tarfile.TarInfo("huge/layer.tar")
        member.size = 50 * 10**9
        file.write(member.tobuf(tarfile.GNU_FORMAT))
        file.seek(-(-member.size // 512) * 512, io.SEEK_CUR)
        file.write(
            tar({image.id[7:] + ".json": image.config_json, "manifest.json": json.dumps(manifest).encode()})
        )
    index = index_archive(str(path))
    assert (index.images[0].tags, index.sha256) == (["huge:1"], "")
    assert index.unpacked > 50 * 10**9


def test_several_images(tmp_path: Path, image: MadeImage) -> None:
    other = MadeImage([layer("three")], ["other:2", "other:latest"])
    index = index_archive(put(tmp_path, saved(image, other)))
    assert [found.ids[0] for found in index.images] == [image.id, other.id]
    assert [tags for _image, tags in wanted_images(index, "a", "", "amd64")] == [image.tags, other.tags]
    assert wanted_images(index, "a", "docker.io/library/other", "amd64") == [
        (index.images[1], ["other:latest"])
    ]


def test_a_saved_layout_of_newer_engines_has_manifest_digests_too(tmp_path: Path, image: MadeImage) -> None:
    """Docker 25 and later write an OCI layout that has manifest.json as well."""
    layout = Layout()
    entry = layout.manifest(image, annotations={"io.containerd.image.name": "docker.io/example/app:1"})
    layout.entries.append(entry)
    config = "blobs/sha256/" + image.id[7:]
    layers = [
        name
        for name, blob in layout.blobs.items()
        if name != config and name[-64:] != entry["digest"][7:] and not blob.startswith(b"{")
    ]
    layout.blobs["manifest.json"] = json.dumps(
        [{"Config": config, "RepoTags": ["example/app:1"], "Layers": layers}]
    ).encode()
    (found,) = index_archive(put(tmp_path, layout.tar())).images
    assert found.ids == [image.id, entry["digest"]]
    assert found.tags == ["example/app:1"]


def test_a_layout_for_several_platforms(tmp_path: Path, image: MadeImage) -> None:
    """As buildx writes it: an index below the index, and an attestation beside the images."""
    arm = MadeImage([layer("arm")], architecture="arm64")
    layout = Layout()
    attestation = layout.blob(b'{"layers": []}', "application/vnd.oci.image.manifest.v1+json")
    attestation["annotations"] = {"vnd.docker.reference.type": "attestation-manifest"}
    below = layout.index([layout.manifest(image), layout.manifest(arm), attestation])
    below["annotations"] = {"io.containerd.image.name": "docker.io/example/app:1"}
    layout.entries.append(below)
    index = index_archive(put(tmp_path, layout.tar()))
    assert {found.architecture for found in index.images} == {"amd64", "arm64"}
    ((chosen, tags),) = wanted_images(index, "a", "example/app:1", "arm64")
    assert (chosen.ids[0], chosen.ids[-1], tags) == (arm.id, below["digest"], ["example/app:1"])
    with pytest.raises(NodeError, match="for amd64, arm64, and this engine runs riscv64"):
        wanted_images(index, "a", "example/app:1", "riscv64")


def test_a_mere_tag_in_a_layout_is_no_name(tmp_path: Path, image: MadeImage) -> None:
    image.tags = ["latest"]
    index = index_archive(put(tmp_path, oci_layout(image)))
    assert index.images[0].tags == []
    assert wanted_images(index, "a", "mine:1", "amd64") == [(index.images[0], ["mine:1"])]


def test_the_expected_name_must_be_there(tmp_path: Path, image: MadeImage) -> None:
    index = index_archive(put(tmp_path, saved(image)))
    with pytest.raises(NodeError, match=r"x.tar does not hold other:1; it holds example/app:1"):
        wanted_images(index, "x.tar", "other:1", "amd64")


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("part", [0.3, 0.6])
def test_a_truncated_archive(tmp_path: Path, image: MadeImage, packing: str, part: float) -> None:
    data = PACKERS[packing](saved(image))
    path = put(tmp_path, data[: int(len(data) * part)])
    with pytest.raises(NodeError, match=r"image\.tar is (truncated|not an image archive|incomplete)"):
        index_archive(path)


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_compressed_archive_without_its_last_bytes(tmp_path: Path, image: MadeImage, packing: str) -> None:
    with pytest.raises(NodeError, match=r"is truncated \(it ends in the middle\)"):
        index_archive(put(tmp_path, PACKERS[packing](saved(image))[:-3]))


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_corrupt_archive(tmp_path: Path, packing: str) -> None:
    noise = hashlib.shake_128(b"noise").digest(200_000)
    data = bytearray(PACKERS[packing](saved(MadeImage([tar({"noise": noise})], ["a:1"]))))
    data[100_000] ^= 0xFF
    with pytest.raises(NodeError, match=r"is (corrupt|truncated)"):
        index_archive(put(tmp_path, bytes(data)))


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path: Path, image: MadeImage) -> None:
    data = bytearray(saved(image))
    data[data.index(b"manifest.json")] ^= 0xFF
    with pytest.raises(NodeError, match="is truncated"):
        index_archive(put(tmp_path, bytes(data)))


def test_a_configuration_that_does_not_match_its_digest(tmp_path: Path, image: MadeImage) -> None:
    data = saved(image).replace(b"/bin/true", b"/bin/evil")
    with pytest.raises(NodeError, match=r"is corrupt, since [0-9a-f]{64}.json does not match its digest"):
        index_archive(put(tmp_path, data))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an image archive, since it is not a tar"),
        (b"#!/bin/sh\nexit 1\n" * 100, "not an image archive, since it is not a tar"),
        (gzip.compress(b"hello" * 1000), "not an image archive, since it is not a tar"),
        (zstd(b"hello" * 1000), "not an image archive, since it is not a tar"),
        (
            tar({"etc/passwd": b"root"}),
            "not an image archive, since no manifest.json or index.json names an image",
        ),
        (tar({"manifest.json": b'{"a": 1}'}), "not an image archive, since manifest.json in it is malformed"),
        (tar({"manifest.json": b"[]"}), "not an image archive, since no manifest.json"),
        (
            tar({"index.json": b'{"manifests": 3}'}),
            "not an image archive, since index.json in it is malformed",
        ),
        (tar({"manifest.json": b'[{"Config": "x.json"}]'}), "incomplete, since x.json is missing in it"),
        (b"BZh91AY&SY", "compressed with bzip2: use a plain tar, gzip or zstd"),
        (b"\xfd7zXZ\x00\x00\x00", "compressed with xz: use a plain tar, gzip or zstd"),
    ],
)
def test_file_that_is_no_image_archive_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(NodeError) as caught:
        index_archive(put(tmp_path, data))
    message = caught.value.sentence
    assert reason in message
    assert message.startswith(str(tmp_path / "image.tar"))
    assert "\n" not in message
    assert caught.value.hint


@given(st.binary(max_size=3000))
def test_any_bytes_are_an_archive_or_a_problem(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = put(tmp_path_factory.getbasetemp(), data, "any")
    with pytest.raises(NodeError):
        index_archive(path)


def test_a_missing_layer(tmp_path: Path, image: MadeImage) -> None:
    manifest = [{"Config": "c.json", "RepoTags": None, "Layers": ["gone/layer.tar"]}]
    data = tar({"c.json": image.config_json, "manifest.json": json.dumps(manifest).encode()})
    with pytest.raises(NodeError, match=r"is incomplete, since layer gone/layer.tar is missing in it"):
        index_archive(put(tmp_path, data))


def test_no_archive_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ArchiveMissing, match=f"{tmp_path}/none does not exist"):
        index_archive(f"{tmp_path}/none")
    with pytest.raises(NodeError, match=rf"{tmp_path} cannot be read \(Is a directory\)"):
        index_archive(str(tmp_path))


def test_no_zstd_program(tmp_path: Path, image: MadeImage, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, zstd(saved(image)))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NodeError, match="the program zstd is missing here"):
        index_archive(path)
