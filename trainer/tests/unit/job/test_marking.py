# SPDX-License-Identifier: GPL-3.0-or-later
"""A rank's lines reach its node's log with its number, however the rank ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waiting import wait_until

BEGIN = """
import os, subprocess, sys, time
from rdm_job.marking import Marked
for stream, path in zip((1, 2), sys.argv[1:]):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
marked = Marked(3, 1, 2)
"""


def run(folder: Path, program: str) -> int:
    """Run a program as a rank does, and return its exit code; nothing may reach the original streams."""
    files = [str(folder / name) for name in ("out", "err")]
    started = subprocess.run(
        [sys.executable, "-c", BEGIN + program, *files], capture_output=True, timeout=60, check=False
    )
    assert (started.stdout, started.stderr) == (b"", b"")
    return started.returncode


def logs(folder: Path) -> tuple[str, str]:
    return (folder / "out").read_text(), (folder / "err").read_text()


def test_each_line_is_marked_with_its_rank_up_to_the_end(tmp_path: Path) -> None:
    assert (
        run(
            tmp_path,
            "os.write(1, b'one\\ntw'); os.write(1, b'o\\n[rank3]: three\\n')\n"
            "subprocess.run([sys.executable, '-c', 'import os; os.write(2, b\"of a program\")'])\n"
            "os.write(1, b'no newline')\n"
            "marked.end()\n"
            # All lines are in the log, and later lines have no mark.
            "assert open(sys.argv[1]).read().endswith('no newline')\n"
            "os.write(2, b'\\nlast')\n",
        )
        == 0
    )
    assert logs(tmp_path) == (
        "[rank3]: one\n[rank3]: two\n[rank3]: three\n[rank3]: no newline",
        "[rank3]: of a program\nlast",
    )


def test_output_before_a_kill_is_in_the_log(tmp_path: Path) -> None:
    text = "print('x' * 100 + '\\n' * 2, end='', flush=True); " * 3
    assert run(tmp_path, f"{text}os.killpg(os.setsid() or os.getpid(), 9)") == -9
    expected = ("[rank3]: " + "x" * 100 + "\n[rank3]: \n") * 3
    wait_until("it is in the log", lambda: logs(tmp_path)[0], lambda text: text == expected)


def test_background_writer_does_not_delay_the_end(tmp_path: Path) -> None:
    """Its lines are still marked after the rank has ended."""
    now = tmp_path / "now"
    program = (
        "import os, pathlib, time\n"
        f"while not pathlib.Path({str(now)!r}).exists(): time.sleep(0.05)\n"
        "os.write(1, b'late')"
    )
    try:
        run(tmp_path, f"subprocess.Popen([sys.executable, '-c', {program!r}])\nmarked.end()\n")
        assert logs(tmp_path)[0] == ""
    finally:
        now.touch()
    wait_until("its line is marked", lambda: logs(tmp_path)[0], lambda text: text == "[rank3]: late")


def test_full_disk_does_not_end_the_rank(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/dev/full")
    text = "print('x' * 10000, flush=True)\n"
    assert run(tmp_path, f"for _ in range(100):\n    {text}marked.end()\nos.write(2, b'done')\n") == 0
    assert (tmp_path / "err").read_text() == "done"
