# SPDX-License-Identifier: GPL-3.0-or-later
"""The pieces of an archive, and the file in which a node keeps them."""

from __future__ import annotations

import hashlib
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import (
    PieceFile,
    PieceList,
    WrongPiece,
    numbers,
    piece_size,
)

from tests.image_archives import saved
from tests.unit.plugins.module_utils.images.peers import MIB, PIECE, layered, pieces_of


def test_pieces_have_a_length_for_their_archive() -> None:
    sizes = (1, 2 << 30, 50 << 30, 1 << 50)
    assert [piece_size(size) for size in sizes] == [PIECE, 2 * MIB, 32 * MIB, 32 * MIB]


def test_pieces_within_existing_layers_are_not_fetched() -> None:
    pieces = PieceList(10, 2, ["a"] * 5, {"layer": (3, 9, "")})
    assert numbers(pieces.wanted(["layer"])) == [0, 1, 4]  # 1 and 4 have bytes of others
    assert numbers(pieces.wanted(["a link to a layer"])) == numbers(pieces.wanted()) == [0, 1, 2, 3, 4]


def test_only_the_right_pieces_of_an_engine_are_kept(tmp_path: Path, blobs: Path) -> None:
    _path, pieces = layered(tmp_path, blobs, saved)
    right, damaged, removed = (
        (blobs / sha256, pieces.within(begin, end)) for begin, end, sha256 in pieces.layers.values()
    )
    damaged[0].write_bytes(bytes(damaged[0].stat().st_size))
    file = PieceFile(str(tmp_path / "a"), pieces, blobs=str(blobs))
    assert numbers(file.claimed) == sorted([*right[1], *damaged[1], *removed[1]])
    removed[0].unlink()
    file.check_claimed()
    assert (file.claimed, numbers(file.have)) == (0, list(right[1]))


def test_files_that_cannot_be_layers_are_not_read(tmp_path: Path, blobs: Path) -> None:
    (tmp_path / "other").write_bytes(b"abcd")
    (blobs / ("a" * 64)).write_bytes(b"longer")
    layers = {"1": (0, 4, "../other"), "2": (0, 4, "a" * 64), "3": (0, 4, "b" * 64), "4": (0, 4, "")}
    pieces = PieceList(4, 2, ["a", "b"], layers)
    assert PieceFile(str(tmp_path / "a"), pieces, blobs=str(blobs)).stored == 0


def test_a_list_of_pieces_is_the_one_that_the_controller_knows() -> None:
    pieces = PieceList(3, 2, ["a", "b"], {})
    assert PieceList.decoded(pieces.encoded(), pieces.digest) == pieces
    with pytest.raises(WrongPiece):
        PieceList.decoded(pieces.encoded() + b" ", pieces.digest)


def test_a_file_is_read_once_for_its_pieces_and_its_digest(archive: Path) -> None:
    data = archive.read_bytes()
    whole = hashlib.sha256()
    pieces = pieces_of(archive, whole)
    assert whole.digest() == hashlib.sha256(data).digest()
    parts = [data[begin : begin + length] for begin, length in map(pieces.span, range(len(pieces.digests)))]
    assert b"".join(parts) == data
    assert pieces.digests == [hashlib.sha256(part).hexdigest() for part in parts]


def test_a_wrong_piece_is_not_kept(tmp_path: Path) -> None:
    file = PieceFile(str(tmp_path / "a"), PieceList(3, 2, ["0" * 64] * 2, {}))
    with pytest.raises(WrongPiece):
        file.write(0, b"ab")
    assert (file.have, (tmp_path / "a").read_bytes()) == (0, b"")


def test_a_piece_that_has_not_grown_yet_is_not_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"ab")
    digests = [hashlib.sha256(data).hexdigest() for data in (b"ab", b"c")]
    file = PieceFile(str(tmp_path / "a"), PieceList(3, 2, digests, {}), growing=True)
    assert file.check(0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", lambda *_: pytest.fail("it was read"))
        assert not file.check(1)
    (tmp_path / "a").write_bytes(b"abc")
    assert file.check(1)


def test_a_full_disk_does_not_lose_the_list_of_pieces(tmp_path: Path) -> None:
    digests = [hashlib.sha256(data).hexdigest() for data in (b"ab", b"c")]
    pieces = PieceList(3, 2, digests, {})
    file = PieceFile(str(tmp_path / "a"), pieces)
    file.write(0, b"ab")
    file.note()
    file.write(1, b"c")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        file.note()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert PieceFile(str(tmp_path / "a"), pieces).claimed & 1
    file.note()
    assert PieceFile(str(tmp_path / "a"), pieces).claimed == 3


def test_pieces_that_cannot_be_read_are_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = [hashlib.sha256(data).hexdigest() for data in (b"ab", b"c")]
    pieces = PieceList(3, 2, digests, {})
    first = PieceFile(str(tmp_path / "a"), pieces)
    first.write(0, b"ab")
    first.note()
    again = PieceFile(str(tmp_path / "a"), pieces)

    def broken(*_arguments: Any) -> bytes:
        raise OSError(5, "Input/output error")

    assert again.claimed == 1
    monkeypatch.setattr(os, "pread", broken)
    again.check_claimed()
    assert (again.claimed, again.have) == (0, 0)
