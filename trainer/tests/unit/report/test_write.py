# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files a report may replace, and how its figures show a NaN loss."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rdm_log.report.write import write
from rdm_log.summary import NothingToRead


def log_of(*losses: str) -> str:
    return "".join(
        f" iteration {n:8d}/ {len(losses)} | elapsed time per iteration (ms): 500.0 | lm loss: {loss} |\n"
        for n, loss in enumerate(losses, 1)
    )


def test_only_a_page_is_replaced(tmp_path: Path) -> None:
    log, page = tmp_path / "run.log", tmp_path / "page.html"
    log.write_text(log_of("3.0E+00", "2.0E+00"))
    with pytest.raises(NothingToRead, match=r"run\.log is there and is no report, so it stays: give another"):
        write([log], log)
    assert log.read_text() == log_of("3.0E+00", "2.0E+00")
    page.touch()
    write([log], page)
    first = page.read_text()
    page.write_text(first[:100])
    write([log], page)
    assert len(page.read_text()) == len(first)


@pytest.mark.parametrize(
    ("losses", "value", "note"),
    [
        (("3.0E+00", "2.0E+00", "NAN", "NAN"), "NaN", "since 3; 2.0000 before, from 3, lowest 2 at 2"),
        (("3.0E+00", "NAN", "2.0E+00"), "2.0000", "from 3, lowest 2 at 3"),
        (("NAN", "NAN"), "NaN", "since 1"),
    ],
)
def test_nan_loss_is_shown_as_no_figure(
    tmp_path: Path, losses: tuple[str, ...], value: str, note: str
) -> None:
    log, page = tmp_path / "run.log", tmp_path / "page.html"
    log.write_text(log_of(*losses))
    write([log], page)
    text = re.sub(r"<[^>]*>", "|", page.read_text())
    assert re.search(rf"lm loss\|+\s*\|*{re.escape(value)}\|+\s*\|*{re.escape(note)}\|", text)
