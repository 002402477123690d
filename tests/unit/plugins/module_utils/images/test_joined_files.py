"""Files of a node that are served as one archive."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.images.joined_files import (
    JoinedFiles,
    joined_pieces,
    layout,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import SMALLEST

CONTENT = {"a": os.urandom(SMALLEST + 5), "empty": b"", "step/b": os.urandom(7), "z": os.urandom(SMALLEST)}
SIZES = {path: len(content) for path, content in CONTENT.items()}
WHOLE = b"".join(CONTENT.values())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "step").mkdir()
    for path, content in CONTENT.items():
        (tmp_path / path).write_bytes(content)
    return tmp_path


def test_the_pieces_are_those_of_all_files_one_after_another(source: Path) -> None:
    pieces = joined_pieces(str(source), dict(reversed(SIZES.items())))
    spans = [pieces.span(number) for number in range(len(pieces.digests))]
    assert [hashlib.sha256(WHOLE[begin:][:length]).hexdigest() for begin, length in spans] == pieces.digests
    assert pieces.size == len(WHOLE)
    begin, end, _digest = layout(SIZES)["step/b"]
    assert WHOLE[begin:end] == CONTENT["step/b"]


def test_node_does_not_fetch_pieces_of_files_that_it_has(source: Path) -> None:
    pieces = joined_pieces(str(source), SIZES)
    assert pieces.wanted(["a"]) == pieces.wanted() & ~1
    assert joined_pieces(str(source), {"empty": 0}).wanted() == 0


def test_each_part_is_read_from_the_files_that_have_it(source: Path) -> None:
    file = JoinedFiles(str(source), joined_pieces(str(source), SIZES), growing=True)
    read = b""
    for stream, offset, count in file.streams(SMALLEST, 20):
        with stream:
            read += os.pread(stream.fileno(), count, offset)
    assert read == WHOLE[SMALLEST : SMALLEST + 20]


def test_a_file_that_has_changed_is_named(source: Path) -> None:
    file = JoinedFiles(str(source), joined_pieces(str(source), SIZES), growing=True)
    (source / "step" / "b").write_bytes(b"longer than it was")
    with pytest.raises(NodeError, match="step/b cannot be read: it was changed"):
        joined_pieces(str(source), SIZES)
    with pytest.raises(OSError, match="step/b cannot be read"):
        list(file.streams(SMALLEST, 20))


def test_a_file_that_is_cut_while_it_is_read_is_a_problem_and_no_traceback(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pread", lambda _file, length, _offset: bytes(length - 1))
    with pytest.raises(NodeError, match=f"a file of {source} was changed while it was read"):
        joined_pieces(str(source), SIZES)
