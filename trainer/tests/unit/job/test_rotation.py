# SPDX-License-Identifier: GPL-3.0-or-later
"""Logs are rotated while they are written, and readers continue across the pieces."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_job.rotation import end_of, lines_from, rotate
from rdm_log.observe import observe
from rdm_log.scan import with_pieces
from rdm_log.sections import sections
from rdm_log.summary import summarise
from rdm_log.tails import count_lines, tail, text_lines
from rdm_log.wanted import Wanted


def test_large_log_is_rotated_while_its_writer_continues(tmp_path: Path) -> None:
    log = tmp_path / "n1.out"
    writer = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    wrote = b""
    for number in range(100):
        line = f"line {number:03d} and more".encode() + b"\n" * (number % 3 != 0)
        os.write(writer, line)
        wrote += line
        rotate(log, 300, keep=50)
        assert log.stat().st_size <= 300
    os.close(writer)
    assert len(with_pieces(log)) > 3
    assert b"".join(path.read_bytes() for path in with_pieces(log)) == wrote
    assert count_lines(log) == wrote.count(b"\n")
    assert "".join(text_lines(log)) == wrote.decode()
    assert {path.name for path in tmp_path.iterdir() if path not in with_pieces(log)} == {".n1.out.before"}


def test_configured_number_of_rotated_logs_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "n1.err"
    for number in range(10):
        with log.open("a") as file:
            file.write(f"{number}\n" * 100)
        rotate(log, 0, keep=3)
    assert log.stat().st_size == 2000
    for number in range(10):
        with log.open("a") as file:
            file.write(f"{number}\n" * 100)
        rotate(log, 100, keep=3)
    assert [path.name for path in with_pieces(log)] == ["n1.err.3", "n1.err.2", "n1.err.1", "n1.err"]
    assert [path.read_text()[:1] for path in with_pieces(log)] == ["7", "8", "9", ""]


@pytest.mark.parametrize(
    ("what", "at"), [("shutil.copyfileobj", 1), ("shutil.copyfileobj", 3), ("os.fsync", 1), ("os.fsync", 2)]
)
def test_full_disk_leaves_the_log_and_its_rotated_files_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, at: int
) -> None:
    """A network file system may report a full disk only at fsync."""
    log = tmp_path / "n1.out"
    log.write_text("older\n" * 10)
    rotate(log, 10, keep=3)
    log.write_text("x\n" * 100)
    module, name = {"shutil": shutil, "os": os}[what.partition(".")[0]], what.partition(".")[2]
    real, calls = getattr(module, name), itertools.count(1)

    def full(*given: object) -> object:
        if next(calls) == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*given)

    monkeypatch.setattr(module, name, full)
    rotate(log, 10, keep=3)
    assert next(calls) == at + 1
    assert [path.read_text() for path in with_pieces(log)] == ["older\n" * 10, "x\n" * 100]
    assert {path.name for path in tmp_path.iterdir()} == {"n1.out", "n1.out.1", ".n1.out.before"}
    # With room again, the log is rotated, and each line exists once.
    rotate(log, 10, keep=3)
    assert [path.read_text() for path in with_pieces(log)] == ["older\n" * 10, "x\n" * 100, ""]
    assert end_of(log) == 260


def test_a_disk_that_takes_only_a_part_leaves_the_log_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "n1.out"
    log.write_text("x\n" * 50_000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The kernel then writes only a part, and returns its size instead of an error.
    resource.setrlimit(resource.RLIMIT_FSIZE, (70_001, limits[1]))
    try:
        rotate(log, 10, keep=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert with_pieces(log) == [log]
    assert log.read_text() == "x\n" * 50_000


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["write", "write", "part", "read", "rotate"]), max_size=40))
def test_follower_gets_each_line_once(tmp_path_factory: pytest.TempPathFactory, does: list[str]) -> None:
    log = tmp_path_factory.mktemp("log") / "n1.out"
    log.touch()
    wrote, read, offset = b"", b"", 0
    for number, what in enumerate([*does, "write", "read", "read"]):
        if what == "rotate":
            rotate(log, 1, keep=50)
        elif what == "read":
            block, offset = lines_from(log, offset, 64)
            read += block
        else:
            line = f"{number}".encode() + b"\n" * (what == "write")
            with log.open("ab") as file:
                file.write(line)
            wrote += line
    assert end_of(log) == len(wrote)
    while block := lines_from(log, offset, 64)[0]:
        read, offset = read + block, offset + len(block)
    assert read == wrote[: wrote.rfind(b"\n") + 1]


def test_removed_logs_are_skipped(tmp_path: Path) -> None:
    log = tmp_path / "n1.out"
    for number in range(5):
        with log.open("a") as file:
            file.write(f"{number}\n")
        rotate(log, 1, keep=2)
    assert lines_from(log, 0, 100) == (b"3\n4\n", 10)


def test_records_that_were_thinned_are_followed_at_their_end(tmp_path: Path) -> None:
    log = tmp_path / "n1.gpu"
    log.write_text("a\n" * 10)
    assert lines_from(log, 500, 100) == (b"", 20)
    assert end_of(tmp_path / "absent") == 0


def test_tail_search_and_figures_read_across_rotated_logs(tmp_path: Path) -> None:
    line = " iteration {0:8d}/ 50 | elapsed time per iteration (ms): 100.0 | lm loss: 2.0E+00 |\n"
    (tmp_path / "n1.out.2").write_text("NODE_RANK: 0\nNNODES: 1\n" + "".join(map(line.format, range(1, 9))))
    (tmp_path / "n1.out.1").write_text("".join(map(line.format, range(9, 12))))
    (tmp_path / "n1.out").write_text("")
    (tmp_path / "n1.err.1").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    (tmp_path / "n1.err").write_text("quiet\n")
    assert tail(tmp_path / "n1.out", 2) == [line.format(10).rstrip("\n"), line.format(11).rstrip("\n")]
    assert Wanted("iteration +3/").last(tmp_path / "n1.out", 5, most=10**6) == [line.format(3).rstrip("\n")]
    (run,) = summarise([tmp_path]).runs
    assert (run["lines"], run["last_iteration"]) == (11, 11)
    output, _, _, info, times = sections(tmp_path, "job")
    assert output.total == 13
    assert info.lines[1:] == ("NODE_RANK: 0", "NNODES: 1")
    assert times.lines[-2:] == ("iteration 11 : 0.1000 s", "debug?  : 0.1000 s")
    assert [one.name for one in observe(tmp_path, now=0.0).findings] == ["gpu-memory"]


def test_lines_since_an_offset_are_found_after_a_rotation(tmp_path: Path) -> None:
    (tmp_path / "n1.err.1").write_text("before\nafter\n")
    (tmp_path / "n1.err").write_text("now\n")
    assert tail(tmp_path / "n1.err", 9, since=7) == ["after", "now"]
    (tmp_path / "n1.err").write_text("now, and longer\n")
    assert tail(tmp_path / "n1.err", 9, since=4) == [" and longer"]
