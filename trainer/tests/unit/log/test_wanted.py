# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines that somebody looks for in a log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rdm_log.wanted import Wanted

TEXT = "[rank3]: ValueError: no\n[default12]:a line\n3: another\nValueError: nobody's\n[rank12]: ValueError\n"


@pytest.mark.parametrize(
    ("grep", "rank", "numbers"),
    [("", None, [0, 1, 2, 3, 4]), ("Value.rror", None, [0, 3, 4]), ("", 3, [0, 2]), ("Value", 12, [4])],
)
def test_a_word_and_a_rank(tmp_path: Path, grep: str, rank: int | None, numbers: list[int]) -> None:
    lines = TEXT.splitlines()
    wanted = [lines[number] for number in numbers]
    looked_for = Wanted(grep, rank)
    assert looked_for.of(TEXT).splitlines() == wanted
    path = tmp_path / "n1.err"
    path.write_text(TEXT)
    assert looked_for.last(path, 100, most=10_000) == wanted
    assert looked_for.last(path, 1, most=10_000) == wanted[-1:]
    assert looked_for.last(path, 100, most=30) in (wanted[-1:], wanted[-2:])
    assert looked_for.last(tmp_path / "absent", 1, most=1) == []


def test_what_is_no_expression_is_refused() -> None:
    with pytest.raises(re.error):
        Wanted("(")
