# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths → a report's file: for ``rdm-trainer report``, and as ``python -m`` for the control side."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rdm_log.report.job import Job, collect
from rdm_log.report.page import page
from rdm_log.summary import NothingToRead

__all__ = ["default_output", "main", "write"]

PAGE = b"<!DOCTYPE html>"
"""How a report begins."""


def write(paths: Sequence[Path], output: Path, *, state: str = "", conf: Path | None = None) -> list[Job]:
    """Write the report of some jobs, and return them.

    Args:
        paths: Of each job what ``collect`` takes.
        output: The file. A page that is there is replaced; nothing else is.
        state: As for ``observe``, of each.
        conf: As for ``observe``, of each.

    Raises:
        NothingToRead: There is nothing of a training in one of them, or the file cannot be written.
    """
    _check_replaceable(output)
    jobs = [collect(path, state=state, conf=conf) for path in paths]
    if len({job.name for job in jobs}) < len(jobs):
        # Two logs of the same name from two places.
        jobs = [replace(job, name=str(path)) for job, path in zip(jobs, paths, strict=True)]
    now = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    sources = ", ".join(job.source for job in jobs if job.source)
    try:
        output.write_text(
            page(jobs, made=f"Made {now}{f' of {sources}' if sources else ''}."), encoding="utf-8"
        )
    except OSError as error:
        raise NothingToRead(f"{output} cannot be written: {error.strerror}.") from error
    return jobs


def _check_replaceable(output: Path) -> None:
    """Raise NothingToRead where something else than a page is in the place, such as a log."""
    try:
        if not output.is_file() or not output.stat().st_size:
            return
        with output.open("rb") as file:
            begins = file.read(len(PAGE))
    except OSError as error:
        raise NothingToRead(f"{output} cannot be written: {error.strerror}.") from error
    if begins != PAGE:
        raise NothingToRead(f"{output} is there and is no report, so it stays: give another output.")


def default_output(paths: Sequence[Path]) -> Path:
    """Return where the report of some paths goes when nobody says it."""
    return Path(f"{paths[0].resolve().name}.html" if len(paths) == 1 else "comparison.html")


def main(arguments: Sequence[str]) -> int:
    """Write a report, for a program that starts this one; say what is wrong in one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--state", default="")
    parser.add_argument("--conf", type=Path)
    given = parser.parse_args(arguments)
    try:
        jobs = write(given.paths, given.output, state=given.state, conf=given.conf)
    except NothingToRead as error:
        print(json.dumps({"ok": False, "problems": [str(error)]}))
        return 3
    verdicts = {job.name: job.verdict().to_json() for job in jobs}
    print(json.dumps({"ok": True, "output": str(given.output), "jobs": verdicts}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
