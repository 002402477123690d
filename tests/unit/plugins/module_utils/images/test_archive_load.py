# SPDX-License-Identifier: GPL-3.0-or-later
"""What is sent to an engine."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import (
    new_layers,
    skippable_members,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_load import (
    ArchiveChanged,
    load_chunks,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.image_archives import (
    PACKERS,
    MadeImage,
    layer,
    oci_layout,
    put,
    saved,
    zstd,
)


@pytest.mark.parametrize("packing", PACKERS)
def test_loaded_stream_is_a_tar_that_old_engines_read(tmp_path: Path, image: MadeImage, packing: str) -> None:
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
def test_layers_that_the_engine_has_are_skipped(height: int, others: int, known: int, packing: str) -> None:
    layers = [layer(f"layer{number}", 700 * number) for number in range(height)]
    one = MadeImage(layers, ["one:1"])
    # Another image of the archive has some of these layers on other ones, so the engine needs them.
    two = MadeImage([layer("else"), *layers[:others]], ["two:1"])
    with tempfile.TemporaryDirectory() as directory:
        path = put(Path(directory), PACKERS[packing](saved(one, two)))
        index = index_archive(path)
        new = new_layers(index.images, [one.diff_ids[:known]])
        skippable = skippable_members(index, new)
        with tarfile.open(fileobj=io.BytesIO(b"".join(load_chunks(path, index, skippable)))) as archive:
            sent = {member.name for member in archive}
            contents = {name: reader.read() for name in sent if (reader := archive.extractfile(name))}
    assert {f"{diff_id[7:]}/layer.tar" for diff_id in new} <= sent
    assert {f"{one.id[7:]}.json", f"{two.id[7:]}.json", "manifest.json"} <= sent
    had = {f"{diff_id[7:]}/layer.tar" for diff_id in one.diff_ids[:known] if diff_id not in new}
    assert skippable == (had if packing == "plain" else set())
    assert sent.isdisjoint(skippable)
    for made in (one, two):
        for diff_id, content in zip(made.diff_ids, made.layers, strict=True):
            assert contents.get(f"{diff_id[7:]}/layer.tar", content) == content


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("make", [saved, oci_layout])
def test_the_end_of_an_archive_that_was_changed_is_never_sent(
    tmp_path: Path, image: MadeImage, make: Any, packing: str
) -> None:
    path = put(tmp_path, PACKERS[packing](make(image)))
    index = index_archive(path, digest=True)
    other = MadeImage([layer("other", 4_000_000)], image.tags)
    swapped = PACKERS[packing](make(other))
    put(tmp_path, swapped)
    sent: list[bytes] = []
    with pytest.raises(ArchiveChanged) as changed:
        sent.extend(load_chunks(path, index))
    assert changed.value.sha256 == hashlib.sha256(swapped).hexdigest()
    if packing == "plain":
        assert sum(map(len, sent)) < max(1, len(swapped) - 1_000_000), (
            "an engine waits for the end of the tar"
        )


def test_members_that_are_left_out_are_hashed(tmp_path: Path) -> None:
    one = MadeImage([layer("low", 3_000_000), layer("high")], ["one:1"])
    path = put(tmp_path, saved(one))
    index = index_archive(path, digest=True)
    skippable = skippable_members(index, new_layers(index.images, [one.diff_ids[:1]]))
    assert len(b"".join(load_chunks(path, index, skippable))) < 3_000_000
    data = bytearray(saved(one))
    data[data.index(layer("low", 3_000_000)) + 2_000_000] ^= 1
    put(tmp_path, bytes(data))
    with pytest.raises(ArchiveChanged):
        list(load_chunks(path, index, skippable))


def test_aborted_load_ends_the_zstd_program(tmp_path: Path) -> None:
    big = MadeImage([layer("big", 20_000_000)], ["big:1"])
    path = put(tmp_path, zstd(saved(big)))
    chunks = load_chunks(path, index_archive(path))
    next(chunks)
    chunks.close()
