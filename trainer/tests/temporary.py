# SPDX-License-Identifier: GPL-3.0-or-later
"""A temporary directory for a suite and its processes, in which nothing may be left.

Both suites' ``conftest.py`` take the hooks from here. Pytest's own directories stay where they were: it keeps
those of the last three runs.
"""

from __future__ import annotations

import contextlib
import fnmatch
import multiprocessing.util
import os
import shutil
import tempfile
from pathlib import Path

import pytest

__all__ = ["pytest_configure", "pytest_sessionfinish", "pytest_terminal_summary"]

_CHECKED_NAMES = ("ompi.*", "rdm-*", "torchelastic_*")
"""Files that our programs make; a module of Ansible that a test kills may leave others."""
_NEXT_CLEANS = "rdm-provision-[0-9]*"
"""Of a run that a test killed: the next run removes it."""
_SUITE = pytest.StashKey[Path]()
_LEFT = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Give the suite its directory."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # Short, because the path of a socket has at most 107 bytes. Tests start other users' processes, too.
    suite = Path(tempfile.mkdtemp(prefix="rdm-t-", dir="/tmp"))
    suite.chmod(0o1777)
    config.stash[_SUITE] = suite
    config.stash[_LEFT] = []
    os.environ["TMPDIR"] = tempfile.tempdir = str(suite)
    # After multiprocessing's own directory, which has priority -100.
    multiprocessing.util.Finalize(None, shutil.rmtree, (suite, True), exitpriority=-1000)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a suite that left something behind."""
    suite = session.config.stash[_SUITE]
    with contextlib.suppress(FileNotFoundError):
        names = sorted(path.name for path in suite.iterdir())
        session.config.stash[_LEFT] += [
            name
            for name in names
            if any(fnmatch.fnmatch(name, ours) for ours in _CHECKED_NAMES)
            and not fnmatch.fnmatch(name, _NEXT_CLEANS)
        ]
    if session.config.stash[_LEFT] and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what was left."""
    for name in config.stash[_LEFT]:
        terminalreporter.write_line(f"LEFT in the temporary directory: {name}", red=True)
