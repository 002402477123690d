# SPDX-License-Identifier: GPL-3.0-or-later
"""A suite that leaves files in the temporary directory fails, and removes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LEAVES = """
import tempfile
from pathlib import Path

def test_leaves():
    suite = Path(tempfile.gettempdir())
    ours = ("ompi.here.0", "rdm-job@1", "torchelastic_1")
    for name in (*ours, "rdm-provision-1", "ansible_file_payload_1", "a-cache"):
        (suite / name).mkdir()
    Path(__file__).with_name("suite").write_text(str(suite))
"""


def test_suite_that_leaves_our_files_fails_and_names_them(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.temporary import *\n")
    (tmp_path / "test_one.py").write_text(LEAVES)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    left = [line.rpartition(": ")[2] for line in done.stdout.splitlines() if line.startswith("LEFT")]
    assert (left, done.returncode) == (["ompi.here.0", "rdm-job@1", "torchelastic_1"], 1)
    suite = Path((tmp_path / "suite").read_text())
    assert suite.is_absolute()
    assert not suite.exists()
