# SPDX-License-Identifier: GPL-3.0-or-later
"""The profilers' command lines, with a stand-in for the profiler that records its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rdm_core import config as configuration
from rdm_core.errors import TrainerError
from rdm_job.directory import JobDirectory
from rdm_job.profilers import wrapped
from rdm_job.protocol import Node, Request

# It records its arguments and then, like the real ones, runs the command after its own options.
STAND_IN = """#!/bin/sh
echo "$0 $*" > "$SAID"
while [ "$1" != {python} ]; do shift; done
exec "$@"
"""


def program(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(STAND_IN.format(python=sys.executable))
    path.chmod(0o755)
    return path


def run_rank(tmp_path: Path, kind: str, rank: int) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run one process of a job as launchers do; return its result, and the profiler's command line."""
    (tmp_path / "program.py").write_text("import os\nprint('rank', os.environ['RANK'], 'ran')\n")
    given = tmp_path / "job.yaml"
    given.write_text(
        f"name: demo\nlauncher: {{profiler: {kind}, profiler_ranks: [1],"
        f" program: ['{tmp_path}/program.py']}}\n"
    )
    job = JobDirectory(tmp_path / "demo-1", "n1")
    job.make(Request("demo-1", "n1", (Node("n1", "127.0.0.1", 2),)))
    job.write_resolved(configuration.dump(configuration.load(given).resolved(2)))
    output = tmp_path / "said"
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "SAID": str(output),
        "RDM_JOB_DIR": str(job.path),
        "RDM_NODE": "n1",
        **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
    }
    lock = job.lock()  # as its agent would
    assert lock is not None
    with lock:
        ended = subprocess.run(
            [sys.executable, "-m", "rdm_job.rank", "--local_rank=1"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    return ended, output.read_text() if output.exists() else ""


def test_nsys_starts_the_configured_rank(tmp_path: Path) -> None:
    nsys = program(tmp_path / "bin", "nsys")
    ended, output = run_rank(tmp_path, "nsys", 1)
    out = (tmp_path / "demo-1" / "logs" / "n1.out").read_text()
    assert (ended.returncode, out) == (0, "rank 1 ran\n"), ended.stderr
    words = output.split()
    assert words[:4] == [str(nsys), "profile", "-t", "cuda,nvtx"]
    assert "--capture-range=cudaProfilerApi" in words
    assert f"--output={tmp_path}/demo-1/profile/rank-00001" in words
    assert words[-4:] == [sys.executable, "-m", "rdm_job.rank", "--local_rank=1"]
    assert (tmp_path / "demo-1" / "profile").is_dir()


def test_rocprof_starts_the_configured_rank(tmp_path: Path) -> None:
    program(tmp_path / "bin", "rocprofv3")
    ended, output = run_rank(tmp_path, "rocprof", 1)
    assert ended.returncode == 0, ended.stderr
    words = output.split()
    assert words[words.index("-d") :][:4] == ["-d", f"{tmp_path}/demo-1/profile", "-o", "rank-00001"]
    assert words[words.index("--") + 1] == sys.executable


def test_other_ranks_run_without_the_profiler(tmp_path: Path) -> None:
    program(tmp_path / "bin", "nsys")
    ended, output = run_rank(tmp_path, "nsys", 0)
    assert (ended.returncode, output) == (0, "")


def test_a_missing_profiler_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TrainerError, match=r"there is no rocprofv3 on rank 3's PATH; install it there"):
        wrapped("rocprof", (3,), 3, tmp_path, ["python"])
    assert wrapped("torch", (3,), 3, tmp_path, ["python"]) is None
    assert wrapped("none", (3,), 3, tmp_path, ["python"]) is None
