# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages on standard error: real lines and their meaning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_log.errors import _of, findings, without_prefix
from rdm_log.messages import HARMLESS, MESSAGES

CORPUS = (Path(__file__).parent / "corpus/stderr.txt").read_text().splitlines()
# In many lines, the program that writes the line follows the message's name.
LINES = [(*line.partition(" | ")[0].split()[:2], line.partition(" | ")[2]) for line in CORPUS]


@pytest.mark.parametrize(("kind", "name", "line"), LINES)
def test_real_lines(kind: str, name: str, line: str) -> None:
    for before in ("", "[rank3]: ", "[default7]:", "31: ", "[1,31]<stderr>:", "\x1b[31m"):
        message = _of(without_prefix(before + line)[0])
        assert (message.kind, message.name) == (kind, name), before


@pytest.mark.parametrize(
    ("kind", "name", "line"),
    # Programs that start others on nodes do not run through pdsh; a program's options do not fail there.
    [one for one in LINES if not re.match(r"(?:srun|sbatch|slurmstepd|pdsh@\S+|mpirun|train\.py)\b", one[2])],
)
def test_real_lines_through_pdsh(kind: str, name: str, line: str) -> None:
    message = _of(without_prefix(f"n2: {line}")[0])
    assert (message.kind, message.name) == (kind, name)


def test_every_message_has_a_real_line_and_every_error_a_cause() -> None:
    named = {name for _, name, _ in LINES}
    assert {message.name for message in MESSAGES} == named - {"unknown"}
    assert all(message.cause for message in MESSAGES if message.kind != "noise")
    assert len({message.name for message in MESSAGES}) == len(MESSAGES)


def test_corpus_names_the_program_of_harmless_lines() -> None:
    heads = {tuple(line.partition(" | ")[0].split()) for line in CORPUS}
    harmless = {message.name for message in HARMLESS}
    named = {head for head in heads if head[1] in harmless}
    assert named == {("warning", message.name, message.program) for message in HARMLESS}


def test_a_warning_that_was_raised_is_an_exception() -> None:
    head = ["Traceback (most recent call last):\n", '  File "/opt/train.py", line 3, in <module>\n']
    for line in ("DeprecationWarning: invalid escape sequence", "an.own.SlowWarning: x"):
        (found,) = findings([*head, f"{line}\n"])
        assert (found.kind, found.name, found.line) == ("error", "exception", line)
        # It ends the traceback.
        assert [one.kind for one in findings([*head, "KeyError: 1\n", f"{line}\n"])].count("error") == 1


def test_exception_of_a_traceback_is_reported() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/opt/train.py", line 3, in <module>',
        '    raise ValueError("error: Killed")',
        "    ~~~~~~^^^",
        "ValueError: no",
    ]
    (found,) = findings(lines)
    assert (found.name, found.line, found.count, found.ranks) == ("exception", "ValueError: no", 1, ())
    # Through pdsh.
    (found,) = findings([f"n2: {line}" for line in lines])
    assert (found.name, found.line, found.count) == ("exception", "ValueError: no", 1)
    # Two ranks at once, line by line.
    both = [f"[rank{rank}]: {line}" for line in lines for rank in (5, 2)]
    (found,) = findings(both)
    assert (found.count, found.ranks) == (2, (2, 5))


HEAD = ["Traceback (most recent call last):\n", '  File "/opt/train.py", line 3, in <module>\n']


@pytest.mark.parametrize("before", ["", "[rank3]: "])
@pytest.mark.parametrize("ending", ["\n", ""])
@pytest.mark.parametrize(
    "line",
    [
        *("Exception", "Exception: foo", "StopIteration", "queue.Empty", "hydra.Oops", "socket.timeout"),
        *("socket.timeout: [Errno 110] Connection timed out", "my.Oops: [no]", "mypkg.Timeout: gone"),
        *("mypkg.Timeout: [WARNING] of something that is deprecated", "SystemExit: 1"),
    ],
)
def test_an_exception_may_have_any_name(line: str, ending: str, before: str) -> None:
    (found,) = findings([f"{before}{one}" for one in (*HEAD, line + ending)])
    assert (found.kind, found.line, found.count) == ("error", line, 1)
    assert found.ranks == ((3,) if before else ())
    (again,) = findings([f"{before}{one}" for one in (*HEAD, line + ending, "on it goes\n")])
    assert (again.name, again.line, again.count) == ("exception", line, 1)


@pytest.mark.parametrize("line", ["SystemExit", "SystemExit: 0", "SystemExit: None"])
def test_an_exit_in_order_is_no_error(line: str) -> None:
    assert findings([*HEAD, line + "\n"]) == findings([*HEAD, line]) == []


@pytest.mark.parametrize(
    ("before", "kinds"),
    [
        ("WARNING: retry 1 after error: ", ["warning"]),
        ("[2024-09-01 10:11:12,131] [WARNING] [x.py:1:f] tried again: ", ["warning"]),
        ("INFO: the first try: ", []),
        ("ERROR: it failed: ", ["error", "error"]),
        ("Original ", ["error"]),
    ],
)
def test_quoted_traceback_belongs_to_its_line(before: str, kinds: list[str]) -> None:
    last = "ConnectionResetError: [Errno 104] Connection reset by peer\n"
    lines = [before + HEAD[0], HEAD[1], last]
    assert [one.kind for one in findings(lines)] == kinds
    assert [one.kind for one in findings([f"[rank3]: {line}" for line in lines])] == kinds
    # It ends the traceback.
    assert "error" in [one.kind for one in findings([*lines, last])]


def test_exceptions_ignored_at_exit_are_no_errors() -> None:
    lines = [
        "Exception ignored in: <function ThreadPool.__del__ at 0x7f>",
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.11/pool.py", line 1, in __del__',
        "AttributeError: 'NoneType' object has no attribute 'dumps'",
    ]
    assert findings(lines) == []


@pytest.mark.parametrize(
    ("end", "line"),
    [
        ("RuntimeErr", "RuntimeErr"),
        ("", "Traceback (most recent call last)"),
        ("    loss.backw", "Traceback (most recent call last)"),
    ],
)
def test_a_traceback_that_was_cut_off_is_an_error(end: str, line: str) -> None:
    head = ["Traceback (most recent call last):\n", '  File "/opt/train.py", line 3, in <module>\n']
    (found,) = findings(["  warnings.warn(\n", *head, end])
    assert (found.name, found.kind, found.cause) == ("traceback", "error", "a traceback was cut off")
    assert (found.line, found.ranks) == (line, ())
    # A rank's traceback, while other ranks go on.
    (found,) = findings([f"[rank3]: {one}" for one in head] + ["[rank1]: on it goes\n"])
    assert (found.name, found.ranks) == ("traceback", (3,))
    assert findings(["Exception ignored in: <x>\n", *head, end]) == []
    assert [one.name for one in findings([*head, "an.own.Fault\n"])] == ["exception"]
    assert [one.name for one in findings([*head, "RuntimeError"])] == ["exception"]


def test_errors_come_first_and_equivalent_lines_once() -> None:
    lines = [
        "a.py:1: UserWarning: x",
        *["OSError: [Errno 28] No space left on device"] * 3,
        "  warnings.warn(",
    ]
    found = findings(lines)
    assert [(one.name, one.kind, one.count) for one in found] == [
        ("disk-full", "error", 3),
        ("user-warning", "warning", 1),
    ]
    assert found[0].to_json()["cause"] == "a disk or a quota is full"


def test_harmless_errors_of_the_document_are_ignored() -> None:
    assert findings(["/opt/x.py:1: FutureWarning: y is deprecated", "  warnings.warn("] * 150) == []


@given(st.lists(st.text(max_size=300), max_size=20))
def test_any_text_is_read(lines: list[str]) -> None:
    findings(lines)
