# SPDX-License-Identifier: GPL-3.0-or-later
"""How a rank reports the end of a user's own program, in a log that other processes write to as well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from rdm_core import config as configuration
from rdm_core.errors import FAILED
from rdm_job.culprit import LINES, Ended
from rdm_job.directory import JobDirectory
from rdm_job.part import Part
from rdm_job.protocol import Node, Request
from tests.waiting import DEADLINE_S

RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
TORCHRUN = """\
E1123 14:00:01.000000 812 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) \
local_rank: 0 (pid: 815) of binary: /usr/bin/python3
Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/torch/distributed/launcher/api.py", line 269, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
rdm_job.rank FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-23_14:00:01
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 815)
============================================================
"""
"""The output of torch's launcher after a process has ended with exit code 1."""


def ended(
    log: Path, program: str, stdin: int | IO[bytes] = subprocess.DEVNULL, before: str = ""
) -> dict[str, Any]:
    """Run a program as a rank does, and return the end of the record."""
    code = (
        f"import json, sys; from rdm_job import rank\n{before}\n"
        f"outcome = rank._outcome(lambda: rank._run([sys.executable, '-c', {program!r}]))\n"
        "print(json.dumps(dict(zip(('exit', 'error', 'lines'), outcome))))"
    )
    with log.open("ab") as errors:
        done = subprocess.run(
            [sys.executable, "-c", code], stdin=stdin, stdout=subprocess.PIPE, stderr=errors, check=True
        )
    return {"rank": 0, "time": 10.0, **json.loads(done.stdout)}


def test_signal_during_startup_is_forwarded_to_the_program(tmp_path: Path) -> None:
    code = (
        "import os, signal, subprocess, sys; from rdm_job import rank\n"
        "signal.signal(signal.SIGTERM, rank._terminated)\n"
        "begin = subprocess.Popen.__init__\n"
        "def init(self, *words, **options):\n"
        "    begin(self, *words, **options)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "subprocess.Popen.__init__ = init\n"
        "print(rank._outcome(lambda: rank._run(['sleep', '600'])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout == "(143, 'it was ended by SIGTERM', [])\n"


PROGRAM = """
import json, os, sys
names = ("SECRET", "PYTHONPATH", "RANK", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "RDM_NODE")
print(json.dumps([{name: os.environ.get(name) for name in names}, sys.argv[1:]]))
"""


def test_rank_has_the_jobs_variables_with_every_launcher(tmp_path: Path) -> None:
    """DeepSpeed's launcher would put them on pdsh's command line, so it gets none."""
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.environ.get("PYTHONPATH", "")
    variables = {
        "SECRET": "two 'words'; $(false)\nand = a line",
        "PYTHONPATH": f"{tmp_path}/a b:{path}",
        **{"RANK": "7", "MASTER_ADDR": "nowhere", "CUDA_VISIBLE_DEVICES": "5"},
    }
    config = configuration.from_dict(
        {
            "name": "gpt",
            "launcher": {"kind": "deepspeed", "env": variables, "program": [f"{tmp_path}/program.py"]},
        }
    )
    job = JobDirectory(tmp_path / "gpt", "n1")
    job.make(Request("gpt", "n1", (Node("n1", "127.0.0.1", 1),)))
    job.write_resolved(configuration.dump(config.resolved(1)))
    lock = job.lock()
    assert lock is not None
    with lock:
        subprocess.run(
            [sys.executable, "-m", "rdm_job.rank", "--local_rank=0"],
            env={
                **os.environ,
                "PYTHONPATH": f"/elsewhere:{path}",
                "RDM_JOB_DIR": str(job.path),
                "RDM_NODE": "n1",
                **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"},
                "CUDA_VISIBLE_DEVICES": "0",
            },
            timeout=DEADLINE_S,
            check=True,
        )
    seen, arguments = json.loads(job.log("n1", "out").read_text())
    assert arguments == ["--local_rank=0"]
    assert seen == {
        **{name: variables[name] for name in ("SECRET", "PYTHONPATH")},
        **{"RANK": "0", "MASTER_ADDR": "127.0.0.1", "CUDA_VISIBLE_DEVICES": "0", "RDM_NODE": "n1"},
    }


def test_a_rank_of_an_attempt_that_was_ended_does_not_begin(tmp_path: Path) -> None:
    """A launcher's ssh connection may take longer than the attempt; it would run until the job ends."""
    ran = tmp_path / "ran"
    (tmp_path / "program.py").write_text(f"open({str(ran)!r}, 'w')")
    settings = {"name": "gpt", "launcher": {"program": [f"{tmp_path}/program.py"]}}
    job = JobDirectory(tmp_path / "gpt", "n1")
    job.make(Request("gpt", "n1", (Node("n1", "127.0.0.1", 1),)))
    job.write_resolved(configuration.dump(configuration.from_dict(settings).resolved(1)))
    job.end_attempt(1)
    job.write_rank(0, {"rank": 0, "attempt": 2})
    job.heartbeat(0).touch()

    def run(attempt: int) -> int:
        variables = {"RDM_JOB_DIR": str(job.path), "RDM_NODE": "n1", "RDM_ATTEMPT": str(attempt)}
        rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        command = [sys.executable, "-m", "rdm_job.rank"]
        environment = {**os.environ, **variables, **rank}
        return subprocess.run(command, env=environment, timeout=DEADLINE_S).returncode

    assert run(1) == FAILED
    assert job.read_ranks() == [{"rank": 0, "attempt": 2}], "the next attempt has its record"
    assert not ran.exists()
    with job.lock() or pytest.fail("another agent runs"):
        assert run(2) == 0
    assert ran.exists()
    assert [one["state"] for one in job.read_ranks()] == ["done"]
    assert not job.heartbeat(0).exists(), "it is of an earlier process"


def ended_of(log: Path, record: dict[str, Any]) -> Ended:
    """Return the node's report of a process, with the log as it is by now."""
    return Ended.of("n1", Part._described(record, log.read_text().splitlines()))


def test_victim_stays_a_victim_when_its_launcher_writes_later(tmp_path: Path) -> None:
    log = tmp_path / "n1.err"
    record = ended(log, "raise ConnectionResetError(104, 'Connection reset by peer')")
    assert log.read_text().endswith(f"{RESET}\n")
    with log.open("a") as launcher:
        launcher.write(TORCHRUN)
    found = ended_of(log, record)
    assert found.error == f"it ended with exit code 1: {RESET}"
    assert found.is_echo
    assert found.lines[-1] == RESET


def test_root_cause_stays_when_victims_write_before_its_end(tmp_path: Path) -> None:
    log = tmp_path / "n1.err"
    # Its peers' connections break while its interpreter shuts down, before it has ended.
    program = (
        "import atexit, pathlib\n"
        f"log = pathlib.Path({str(log)!r})\n"
        "def victim():\n"
        "    while not log.read_text().endswith(\"KeyError: 'x'\\n\"): pass\n"
        f"    log.open('a').write('[rank1]: {RESET}\\n{RESET}\\n')\n"
        "atexit.register(victim)\n"
        "raise KeyError('x')"
    )
    record = ended(log, program)
    assert log.read_text().splitlines()[-1] == RESET
    found = ended_of(log, record)
    assert found.error == "it ended with exit code 1: KeyError: 'x'"
    assert not found.is_echo
    assert found.lines[-1] == "KeyError: 'x'"


@pytest.mark.parametrize(
    ("program", "code", "error"),
    [
        ("print('all is well', file=sys.stderr)", 0, ""),
        ("sys.stderr.write('no newline'); sys.exit(3)", 3, "it ended with exit code 3: no newline"),
        ("os.kill(os.getpid(), 15)", 143, "it was ended by SIGTERM"),
    ],
)
def test_how_a_program_ends(tmp_path: Path, program: str, code: int, error: str) -> None:
    record = ended(tmp_path / "n1.err", f"import os, sys; {program}")
    assert (record["exit"], record["error"]) == (code, error)


def test_last_output_of_a_program_is_read_on_a_busy_node(tmp_path: Path) -> None:
    late = (
        "import time; read = rank._copy_errors\n"
        "rank._copy_errors = lambda *pipes: (time.sleep(rank._REST_S + 1), read(*pipes))"
    )
    record = ended(tmp_path / "n1.err", "raise KeyError('x')", before=late)
    assert record["error"] == "it ended with exit code 1: KeyError: 'x'"


def test_orphans_do_not_delay_the_end_and_all_output_is_in_the_log(tmp_path: Path) -> None:
    log, left = tmp_path / "n1.err", "import sys; sys.stdin.read()"
    lines = "for i in range(20000): print('line', i, file=sys.stderr)"
    program = (
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {left!r}], stdout=sys.stderr)\n"
        f"{lines}\nsys.exit(1)"
    )
    with subprocess.Popen(["sleep", "infinity"], stdout=subprocess.PIPE) as holds:
        assert holds.stdout is not None
        record = ended(log, program, holds.stdout)
        assert holds.poll() is None
        holds.kill()
    assert log.read_text().splitlines() == [f"line {number}" for number in range(20000)]
    assert record["lines"] == [f"line {number}" for number in range(20000 - LINES, 20000)]
