# SPDX-License-Identifier: GPL-3.0-or-later
"""What a process of a job may do."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("wanted", "allowed"), [("", 200), ("150", 150), ("10", 100), ("1000", 200)])
def test_a_process_gets_the_open_files_that_it_may_have(wanted: str, allowed: int) -> None:
    code = (
        "import resource; from rdm_job.processes import allow_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))\n"
        f"allow_files({wanted})\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(allowed), "200"]
