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

_PAGE = b"<!DOCTYPE html>"
"""The beginning of every report."""


def write(paths: Sequence[Path], output: Path, *, state: str = "", conf: Path | None = None) -> list[Job]:
    """Write the report of some jobs, and return the jobs.

    Args:
        paths: A path for each job, as for ``collect``.
        output: The file. It replaces an earlier report, but no other file.
        state: As for ``observe``, for each job.
        conf: As for ``observe``, for each job.

    Raises:
        NothingToRead: A path has no training, or the file cannot be written.
    """
    _check_replaceable(output)
    jobs = [collect(path, state=state, conf=conf) for path in paths]
    if len({job.name for job in jobs}) < len(jobs):
        # Logs with the same name in different directories.
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
    """Raise NothingToRead if the output exists and is not a report, but, for example, a log."""
    try:
        if not output.is_file() or not output.stat().st_size:
            return
        with output.open("rb") as file:
            begins = file.read(len(_PAGE))
    except OSError as error:
        raise NothingToRead(f"{output} cannot be written: {error.strerror}.") from error
    if begins != _PAGE:
        raise NothingToRead(f"{output} is there and is no report, so it stays: give another output.")


def default_output(paths: Sequence[Path]) -> Path:
    """Return the default output for some paths."""
    return Path(f"{paths[0].resolve().name}.html" if len(paths) == 1 else "comparison.html")


def main(arguments: Sequence[str]) -> int:
    """Write a report, for a calling program; print the result or the problems as one line of JSON."""
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
