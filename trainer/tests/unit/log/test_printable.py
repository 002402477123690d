# SPDX-License-Identifier: GPL-3.0-or-later
"""Nothing in a log acts on the terminal that shows it."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_log.printable import printable
from tests.unit.conftest import Program

TITLE = "\x1b]0;PWNED\x07"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"{TITLE}RuntimeError\n", "RuntimeError\n"),
        ("\x1b]52;c;cm0gLXJm\x1b\\a", "a"),
        ("\x1b[2J\x1b[1;31mred\x1b[0m\ttab", "red\ttab"),
        ("\x9b31mred \x9d0;title\x9c", "red "),
        ("\x1bcreset\x07\x08\x7f\x00", "reset"),
        ("cut \x1b]0;title", "cut 0;title"),
        ("größer ✔ 日本\n", "größer ✔ 日本\n"),
    ],
)
def test_escape_sequences_are_removed_and_words_stay(text: str, left: str) -> None:
    assert printable(text) == left


@given(st.binary().map(lambda data: data.decode("utf-8", "replace")))
def test_no_control_character_is_left_of_any_bytes(text: str) -> None:
    assert not [one for one in printable(text) if unicodedata.category(one) == "Cc" and one not in "\t\n"]


@pytest.mark.parametrize(
    ("verb", "words"),
    [("summary", "[bold]forward"), ("sections", "RuntimeError: no"), ("verdict", "RuntimeError: no")],
)
def test_printed_log_lines(verb: str, words: str, tmp_path: Path, program: Program) -> None:
    step = " iteration        1/       2 | elapsed time per iteration (ms): 9.0 | lm loss: 9.0 |\n"
    timers = f"time (ms) | {TITLE}[bold]forward: 1.0 |\n"
    (tmp_path / "n1.out").write_text(f"{step}{timers}{TITLE}last\n")
    (tmp_path / "n1.err").write_text(f"RuntimeError: {TITLE}no\n")
    _, shown, _ = program("log", verb, tmp_path)
    assert words in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "PWNED" not in shown
