"""What is in an image archive: every format, every damage, and never more memory than a chunk."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.archive import image_archive
from ansible_collections.rdm.provision.plugins.module_utils.archive.image_archive import (
    ArchiveIndex,
    ArchiveMissing,
    ArchiveProblem,
    cached_index,
    forget_index,
    index_archive,
    load_chunks,
    new_layers,
    room_to_load,
    same_image,
    sentence,
    short_name,
    spare_members,
    traits,
    wanted_images,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.image_archives import Layout, MadeImage, digest, layer, oci_layout, saved, tar


def zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-qc"], input=data, check=True, capture_output=True).stdout


PACKERS: dict[str, Callable[[bytes], bytes]] = {"plain": bytes, "gzip": gzip.compress, "zstd": zstd}


@pytest.fixture
def image() -> MadeImage:
    return MadeImage([layer("one", 5000), layer("two")], ["example/app:1"])


def put(directory: Path, data: bytes, name: str = "archive") -> str:
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


# ---- reading


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


def test_a_plain_archive_is_not_read_through(tmp_path: Path, image: MadeImage) -> None:
    """The layers are holes of 50 GB in the file: whoever read them would not come back."""
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


def test_a_saved_layout_of_newer_engines_tells_manifest_digests_too(tmp_path: Path, image: MadeImage) -> None:
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
    with pytest.raises(ArchiveProblem, match="for amd64, arm64, and this engine runs riscv64"):
        wanted_images(index, "a", "example/app:1", "riscv64")


def test_a_mere_tag_in_a_layout_is_no_name(tmp_path: Path, image: MadeImage) -> None:
    image.tags = ["latest"]
    index = index_archive(put(tmp_path, oci_layout(image)))
    assert index.images[0].tags == []
    assert wanted_images(index, "a", "mine:1", "amd64") == [(index.images[0], ["mine:1"])]


def test_the_expected_name_must_be_there(tmp_path: Path, image: MadeImage) -> None:
    index = index_archive(put(tmp_path, saved(image)))
    with pytest.raises(ArchiveProblem, match=r"x.tar does not hold other:1; it holds example/app:1"):
        wanted_images(index, "x.tar", "other:1", "amd64")


# ---- damage


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("part", [0.3, 0.6])
def test_a_truncated_archive(tmp_path: Path, image: MadeImage, packing: str, part: float) -> None:
    data = PACKERS[packing](saved(image))
    path = put(tmp_path, data[: int(len(data) * part)])
    with pytest.raises(ArchiveProblem, match=r"archive is (truncated|not an image archive|incomplete)"):
        index_archive(path)


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_compressed_archive_without_its_last_bytes(tmp_path: Path, image: MadeImage, packing: str) -> None:
    with pytest.raises(ArchiveProblem, match=r"is truncated \(it ends in the middle\)"):
        index_archive(put(tmp_path, PACKERS[packing](saved(image))[:-3]))


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_corrupt_archive(tmp_path: Path, packing: str) -> None:
    noise = hashlib.shake_128(b"noise").digest(200_000)
    data = bytearray(PACKERS[packing](saved(MadeImage([tar({"noise": noise})], ["a:1"]))))
    data[100_000] ^= 0xFF
    with pytest.raises(ArchiveProblem, match=r"is (corrupt|truncated)"):
        index_archive(put(tmp_path, bytes(data)))


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path: Path, image: MadeImage) -> None:
    data = bytearray(saved(image))
    data[data.index(b"manifest.json")] ^= 0xFF
    with pytest.raises(ArchiveProblem, match="is truncated"):
        index_archive(put(tmp_path, bytes(data)))


def test_a_configuration_that_does_not_match_its_digest(tmp_path: Path, image: MadeImage) -> None:
    data = saved(image).replace(b"/bin/true", b"/bin/evil")
    with pytest.raises(
        ArchiveProblem, match=r"is corrupt, since [0-9a-f]{64}.json does not match its digest"
    ):
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
def test_what_is_no_image_archive(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(ArchiveProblem) as caught:
        index_archive(put(tmp_path, data))
    said = sentence(str(caught.value), caught.value.remedy)
    assert reason in said
    assert said.startswith(str(tmp_path / "archive"))
    assert "\n" not in said
    assert caught.value.remedy


@given(st.binary(max_size=3000))
def test_any_bytes_are_an_archive_or_a_problem(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = put(tmp_path_factory.getbasetemp(), data, "any")
    with pytest.raises(ArchiveProblem):
        index_archive(path)


def test_a_missing_layer(tmp_path: Path, image: MadeImage) -> None:
    manifest = [{"Config": "c.json", "RepoTags": None, "Layers": ["gone/layer.tar"]}]
    data = tar({"c.json": image.config_json, "manifest.json": json.dumps(manifest).encode()})
    with pytest.raises(ArchiveProblem, match=r"is incomplete, since layer gone/layer.tar is missing in it"):
        index_archive(put(tmp_path, data))


def test_no_archive_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ArchiveMissing, match=f"{tmp_path}/none does not exist"):
        index_archive(f"{tmp_path}/none")
    with pytest.raises(ArchiveProblem, match=rf"{tmp_path} cannot be read \(Is a directory\)"):
        index_archive(str(tmp_path))


def test_no_zstd_program(tmp_path: Path, image: MadeImage, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, zstd(saved(image)))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ArchiveProblem, match="the program zstd is missing here"):
        index_archive(path)


# ---- names and sameness


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("docker.io/library/debian", "debian:latest"),
        ("index.docker.io/rocm/pytorch:6", "rocm/pytorch:6"),
        ("localhost:5000/app", "localhost:5000/app:latest"),
        ("registry.example.com/a/b-c_d:V1.x", "registry.example.com/a/b-c_d:V1.x"),
    ],
)
def test_names_are_as_docker_shows_them(name: str, short: str) -> None:
    assert short_name(name) == short
    assert short_name(short) == short


@pytest.mark.parametrize(
    "name", ["", "a b", "a:$(id)", "a'b", "a\nb", "../x", "a@sha256:" + 64 * "0", "-x:1"]
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ArchiveProblem, match="is not an image name"):
        short_name(name)


def test_the_same_image_in_either_store(tmp_path: Path, image: MadeImage) -> None:
    (found,) = index_archive(put(tmp_path, saved(image))).images
    assert same_image(found, inspected(image))
    elsewhere = {"Id": "sha256:" + 64 * "e"}
    assert same_image(found, inspected(image, **elsewhere))
    assert same_image(found, inspected(image, Created="2026-01-02T03:04:05.670000000Z", **elsewhere))
    assert not same_image(found, inspected(image, Created="2026-01-02T03:04:06Z", **elsewhere))
    assert not same_image(
        found, inspected(image, Config={"Cmd": ["/bin/false"], "Env": ["A=1"]}, **elsewhere)
    )
    assert not same_image(found, inspected(image, RootFS={"Layers": image.diff_ids[:1]}, **elsewhere))
    assert not same_image(found, {**elsewhere})


def test_an_unknown_moment_of_creation_is_none() -> None:
    assert traits("", None) == traits("0001-01-01T00:00:00Z", {})
    assert traits("2026-01-01T00:00:00Z", {}) == traits("2026-01-01T00:00:00.000Z", {"Env": []})


# ---- loading


@pytest.mark.parametrize("packing", PACKERS)
def test_what_is_loaded_is_a_tar_that_old_engines_read(
    tmp_path: Path, image: MadeImage, packing: str
) -> None:
    path = put(tmp_path, PACKERS[packing](oci_layout(image)))
    index = index_archive(path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(load_chunks(path, index)))) as archive:
        manifest = archive.extractfile("manifest.json")
        assert manifest is not None
        ((entry),) = json.load(manifest)
        assert entry["RepoTags"] == image.tags
        for member in [entry["Config"], *entry["Layers"]]:
            assert archive.getmember(member)


def test_zstd_is_unpacked_and_gzip_is_left_to_the_engine(tmp_path: Path, image: MadeImage) -> None:
    data = saved(image)
    for packing, expected in (("plain", data), ("gzip", gzip.compress(data, mtime=0)), ("zstd", data)):
        packed = gzip.compress(data, mtime=0) if packing == "gzip" else PACKERS[packing](data)
        path = put(tmp_path, packed)
        assert b"".join(load_chunks(path, index_archive(path))) == expected


@given(
    height=st.integers(1, 5),
    others=st.integers(0, 3),
    known=st.integers(0, 5),
    packing=st.sampled_from(["plain", "gzip"]),
)
@settings(deadline=None)  # files are written and read
def test_what_is_left_out_is_what_the_engine_has(height: int, others: int, known: int, packing: str) -> None:
    layers = [layer(f"layer{number}", 700 * number) for number in range(height)]
    one = MadeImage(layers, ["one:1"])
    # Another image of the archive has some of these layers upon something else: there the engine needs them.
    two = MadeImage([layer("else"), *layers[:others]], ["two:1"])
    with tempfile.TemporaryDirectory() as directory:
        path = put(Path(directory), PACKERS[packing](saved(one, two)))
        index = index_archive(path)
        new = new_layers(index.images, [one.diff_ids[:known]])
        spare = spare_members(index, new)
        with tarfile.open(fileobj=io.BytesIO(b"".join(load_chunks(path, index, spare)))) as archive:
            sent = {member.name for member in archive}
            contents = {name: reader.read() for name in sent if (reader := archive.extractfile(name))}
    assert {f"{diff_id[7:]}/layer.tar" for diff_id in new} <= sent
    assert {f"{one.id[7:]}.json", f"{two.id[7:]}.json", "manifest.json"} <= sent
    had = {f"{diff_id[7:]}/layer.tar" for diff_id in one.diff_ids[:known] if diff_id not in new}
    assert spare == (had if packing == "plain" else set())
    assert sent.isdisjoint(spare)
    for made in (one, two):
        for diff_id, content in zip(made.diff_ids, made.layers, strict=True):
            assert contents.get(f"{diff_id[7:]}/layer.tar", content) == content


def test_a_load_that_is_given_up_ends_the_zstd_program(tmp_path: Path) -> None:
    big = MadeImage([layer("big", 20_000_000)], ["big:1"])
    path = put(tmp_path, zstd(saved(big)))
    chunks = load_chunks(path, index_archive(path))
    next(chunks)
    chunks.close()


# ---- remembering


def test_a_compressed_archive_is_read_once(
    tmp_path: Path, image: MadeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = str(tmp_path / "cache")
    data = gzip.compress(saved(image))
    path = put(tmp_path, data)
    first = cached_index(path, "", cache)
    with monkeypatch.context() as patch:
        patch.delattr(image_archive, "index_archive")
        assert cached_index(path, digest(data)[7:].upper(), cache) == first
    changed = MadeImage([layer("new")], ["example/app:2"])
    put(tmp_path, gzip.compress(saved(changed)))
    assert cached_index(path, "", cache).images[0].ids == [changed.id]
    forget_index(path, cache)
    assert not (tmp_path / "cache").exists()


def test_a_plain_archive_is_remembered_for_its_digest_only(tmp_path: Path, image: MadeImage) -> None:
    path = put(tmp_path, saved(image))
    cached_index(path, "", str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()
    cached_index(path, digest(saved(image))[7:], str(tmp_path / "cache"))
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_wrong_digest_is_named(tmp_path: Path, image: MadeImage) -> None:
    data = saved(image)
    path = put(tmp_path, data)
    for _again in range(2):
        with pytest.raises(ArchiveProblem, match=f"archive has sha256 {digest(data)[7:]}, not {64 * '0'}"):
            cached_index(path, 64 * "0", str(tmp_path / "cache"))


def test_a_missing_archive_is_remembered_for_its_removal(tmp_path: Path, image: MadeImage) -> None:
    cache = str(tmp_path / "cache")
    path = put(tmp_path, gzip.compress(saved(image)))
    before = cached_index(path, "", cache)
    Path(path).unlink()
    assert cached_index(path, "", cache, stale=True) == before
    with pytest.raises(ArchiveMissing):
        cached_index(path, "", cache)
    forget_index(path, cache)
    with pytest.raises(ArchiveMissing):
        cached_index(path, "", cache, stale=True)


def test_a_damaged_memory_is_made_anew(tmp_path: Path, image: MadeImage) -> None:
    cache = tmp_path / "cache"
    path = put(tmp_path, gzip.compress(saved(image)))
    index = cached_index(path, "", str(cache))
    for text in ('{"identity"', "[]", "{}", '{"index": {"images": []}}'):
        next(cache.iterdir()).write_text(text)
        assert cached_index(path, "", str(cache)) == index


def test_works_where_nothing_can_be_remembered(tmp_path: Path, image: MadeImage) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    path = put(tmp_path, gzip.compress(saved(image)))
    assert cached_index(path, "", str(blocked / "cache")).images[0].ids == [image.id]


# ---- room


def test_layers_that_an_engine_shares_need_no_room(tmp_path: Path) -> None:
    base, middle, top = layer("base", 5000), layer("middle", 9000), layer("top", 2000)
    image = MadeImage([base, middle, top], ["example/app:1"])
    index = index_archive(put(tmp_path, saved(image)))
    sizes = dict(zip(image.diff_ids, map(len, image.layers), strict=True))
    assert new_layers(index.images, []) == sizes
    assert new_layers(index.images, [[digest(middle)]]) == sizes, "a layer is shared on the same layers only"
    assert new_layers(index.images, [[digest(base)], [digest(base), digest(middle)], []]) == {
        digest(top): len(top)
    }


def test_room_is_for_the_largest_archive_on_top_of_what_is_stored() -> None:
    archives = [
        {"unpacked": 100, "new_layers": {"base": 80, "one": 20}},
        {"unpacked": 0, "new_layers": {}},
        {"unpacked": 90, "new_layers": {"base": 80, "two": 10}},
    ]
    assert room_to_load(archives, classic=True) == 200
    assert room_to_load(archives[::-1], classic=True) == 210
    assert room_to_load(archives, classic=False) == 110
    assert room_to_load([], classic=True) == 0


def test_a_full_disk_below_the_cache_is_no_problem(
    tmp_path: Path, image: MadeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = put(tmp_path, gzip.compress(saved(image)))
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        assert cached_index(path, "", str(tmp_path / "cache")).images[0].tags == image.tags
    assert not (tmp_path / "cache").exists()
