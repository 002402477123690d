# SPDX-License-Identifier: GPL-3.0-or-later
"""A directory of logs → what a verdict needs to know. It reads files and changes nothing."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from rdm_log.errors import findings
from rdm_log.heads import head, vocabulary_of
from rdm_log.scan import pieces
from rdm_log.sections import job_info
from rdm_log.summary import NothingToRead, log_files, summarise
from rdm_log.tails import tail, text_lines
from rdm_log.verdict import Observed

__all__ = ["observe"]

_MOST_LINES = 1_000_000
"""So many lines of a node's errors are looked through."""
_SETTING = re.compile(
    r"""^(?:export +)?([A-Z][A-Z0-9_]*)=["']?([^"'#\s$`]+)["']?[ \t]*(?:#.*)?$""", re.MULTILINE
)
_DEVICE = re.compile(r"^\[\d+\] .*\| +(\d+) / +\d+ MB \|(.*)$")
_DEVICES = 16


def observe(directory: Path, *, state: str = "", conf: Path | None = None, now: float) -> Observed:
    """Return what the logs of a job tell.

    Args:
        directory: A job's, or one with ``NODE.out``, ``NODE.err`` and ``NODE.gpu``.
        state: The launcher's or scheduler's word, where it is known.
        conf: What was asked for, as ``KEY=VALUE`` lines; values that a shell would compute are left out.
        now: Seconds since 1970.

    Raises:
        NothingToRead: The directory has no logs, or CONF cannot be read.
    """
    outputs = log_files(directory)
    try:
        runs: Sequence[dict[str, object]] = summarise(outputs).runs
    except NothingToRead:
        runs = ()
    folder = outputs[0].parent
    changed = max(output.stat().st_mtime for output in outputs)
    return Observed(
        state=state,
        runs=runs,
        findings=findings(line for file in sorted(folder.glob("*.err")) for line in _lines(file)),
        asked=_settings(conf) if conf else {},
        told={"": job_info(outputs)},
        gpu_processes=_processes(sorted(folder.glob("*.gpu"))),
        seconds_since_step=max(0.0, now - changed) if runs else None,
        vocabulary=_vocabulary(outputs),
    )


def _vocabulary(outputs: Sequence[Path]) -> int | None:
    """Return what the first process wrote of its vocabulary, whichever node it was on."""
    for group in pieces(outputs):
        with contextlib.suppress(OSError):
            if (found := vocabulary_of(head(group[0]))) is not None:
                return found
    return None


def _lines(file: Path) -> Iterator[str]:
    yield from islice(text_lines(file), _MOST_LINES)


def _settings(conf: Path) -> dict[str, str]:
    try:
        return dict(_SETTING.findall(conf.read_text(encoding="utf-8", errors="replace")))
    except OSError as error:
        raise NothingToRead(f"{conf} cannot be read: {error.strerror}.") from error


def _processes(files: Sequence[Path]) -> dict[str, int]:
    """Return on how many GPUs of each node a process is named, or memory in use; nothing of unknown nodes."""
    found = {}
    for file in files:
        devices = [match for line in tail(file, _DEVICES) if (match := _DEVICE.match(line))]
        if devices:
            found[file.stem] = sum(1 for one in devices if int(one[1]) or one[2].strip())
    return found
