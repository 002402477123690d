# SPDX-License-Identifier: GPL-3.0-or-later
"""Searching for lines in a log."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rdm_log.wanted import Wanted

TEXT = "[rank3]: ValueError: no\n[default12]:a line\n3: another\nValueError: nobody's\n[rank12]: ValueError\n"


@pytest.mark.parametrize(
    ("grep", "rank", "numbers"),
    [("", None, [0, 1, 2, 3, 4]), ("Value.rror", None, [0, 3, 4]), ("", 3, [0, 2]), ("Value", 12, [4])],
)
def test_lines_are_searched_by_word_and_rank(
    tmp_path: Path, grep: str, rank: int | None, numbers: list[int]
) -> None:
    lines = TEXT.splitlines()
    wanted = [lines[number] for number in numbers]
    selection = Wanted(grep, rank)
    assert selection.of(TEXT).splitlines() == wanted
    path = tmp_path / "n1.err"
    path.write_text(TEXT)
    assert selection.last(path, 100, most=10_000) == wanted
    assert selection.last(path, 1, most=10_000) == wanted[-1:]
    assert selection.last(path, 100, most=30) in (wanted[-1:], wanted[-2:])
    assert selection.last(tmp_path / "absent", 1, most=1) == []


def test_invalid_regular_expression_is_refused() -> None:
    with pytest.raises(re.error):
        Wanted("(")


MARKED = """\
[Rank 3] (after 2 iterations) memory (MB) | allocated: 7.5
[2026-11-22 10:00:00,123] [INFO] [logging.py:128:log_dist] [Rank 3] step=10, skipped=0, lr=[0.001], mom=[0.9]
[1,3]<stdout>:of mpirun
n1: [rank3]: of pdsh and torch
n2: of another node
10.0.0.2: of another node, by its address
10.0.0.1: [rank3]: of pdsh, which has the address
fd00::1: [rank3]: and here
[rank12]: another's
nobody's
"""
TRACEBACK = """\
begun
[rank3]: Traceback (most recent call last):
  File "train.py", line 7, in <module>
    main()
[rank2]: NCCL is slow
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 9, in <module>
ValueError: no
ended
  and indented
"""


def test_each_way_of_marking_a_line_names_its_rank() -> None:
    lines = MARKED.splitlines()
    assert Wanted(rank=3).of(MARKED).splitlines() == [*lines[:4], *lines[6:8]]
    # All of a node's lines are its only rank's; so are lines of a log that are not marked as another rank's.
    assert Wanted(rank=3, nodes=("n2", "10.0.0.2")).of(MARKED).splitlines() == lines[:8]
    assert Wanted(rank=3, is_alone=True).of(MARKED).splitlines() == [*lines[:8], lines[9]]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_traceback_continues_in_unmarked_lines(end: str) -> None:
    text = TRACEBACK.replace("\n", end)
    found = Wanted(rank=3).of(text).split(end)
    lines = text.split(end)
    assert found == [*lines[1:4], *lines[5:12], ""]
    assert Wanted(rank=2).of(text) == lines[4] + end
    # The same when it is read in parts.
    wanted = Wanted("Error", 3)
    parts = [wanted.of(line + end) for line in lines]
    assert [part.strip() for part in parts if part] == ["KeyError: 'a'", "ValueError: no"]


FINISHED = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "train.py", line 9, in <module>
[rank3]: ValueError: no
"""


@pytest.mark.parametrize(
    "behind", ["iteration 20/100\n", "  indented\n", "Traceback (most recent call last):\n"]
)
def test_line_after_a_fully_marked_traceback_has_no_rank(behind: str) -> None:
    assert Wanted(rank=3).of(FINISHED + behind + "ChildFailedError: 1\n") == FINISHED


def test_a_traceback_without_a_rank_ends_the_one_above_it() -> None:
    """Unless that traceback says that another one follows."""
    text = "[Rank 3] Traceback (most recent call last):\n  File\nValueError: no\n"
    assert Wanted(rank=3).of(text + "Traceback (most recent call last):\n  File\nOSError\n") == text


def test_torchrun_counts_ranks_within_the_node() -> None:
    text = "[default0]:a\n[rank5]: b\n[default5]:c\n"
    assert Wanted(rank=5).of(text) == "[rank5]: b\n[default5]:c\n"
    assert Wanted(rank=5, first=5).of(text) == "[default0]:a\n[rank5]: b\n"


def test_lines_through_pdsh_are_found_by_the_address_that_it_was_given() -> None:
    command = ["pdsh", "-R", "exec", "-w", "127.0.0.1,127.0.0.2", "printf", "plain\n[rank%n]: hi\n"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert sorted(Wanted(rank=1).of(text).splitlines()) == ["127.0.0.2: [rank1]: hi"]
    found = Wanted(rank=1, nodes=("n2", "127.0.0.2")).of(text).splitlines()
    assert sorted(found) == ["127.0.0.2: [rank1]: hi", "127.0.0.2: plain"]
