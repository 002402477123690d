"""Rounds beside a burner: what failed is named and kept, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests import stress
from tests.conftest import ROOT


def alive(processes: Iterable[int]) -> list[int]:
    """Those of the processes that run."""
    found = []
    for process in processes:
        try:
            stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        if stat.rpartition(")")[2].split()[0] not in "ZX":
            found.append(process)
    return found


def wait_until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + 240
    while left := alive(processes):
        assert time.monotonic() < deadline, f"processes {left} are still there"
        time.sleep(0.05)


def test_a_burner_ends_with_its_block() -> None:
    with stress.burner(2) as processes:
        assert alive(processes) == processes
    assert len(processes) == 2
    assert alive(processes) == []


def test_a_burner_ends_with_an_exception() -> None:
    started: list[int] = []

    def interrupted() -> None:
        with stress.burner(2) as processes:
            started.extend(processes)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(started) == 2
    assert alive(started) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_burner_ends_with_its_program(number: signal.Signals) -> None:
    program = (
        "import signal, sys; from tests import stress\n"
        "with stress.burner(2) as processes:\n"
        "    print(*processes, flush=True); signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        processes = [int(word) for word in process.stdout.readline().split()]
        assert len(processes) == 2
        process.send_signal(number)
    wait_until_gone(processes)


def test_what_interrupts_the_program_interrupts_the_suite_which_cleans_up(tmp_path: Path) -> None:
    suite = (
        "import pathlib, signal, sys\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "try:\n"
        "    (place / 'begun').touch(); signal.pause()\n"
        "finally:\n"
        "    (place / 'cleaned').touch()\n"
    )

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    watcher = subprocess.Popen(
        [
            *("sh", "-c", 'until test -e "$1/begun"; do sleep 0.1; done; kill -USR1 "$2"', "sh"),
            *(str(tmp_path), str(os.getpid())),
        ]
    )
    try:
        with pytest.raises(KeyboardInterrupt):
            stress.run([sys.executable, "-c", suite, str(tmp_path)], tmp_path / "log")
    finally:
        signal.signal(signal.SIGUSR1, before)
        watcher.wait()
    assert (tmp_path / "cleaned").exists()


def test_what_failed_in_which_round_is_reported_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "old-1.log").touch()
    # Red in its second round alone.
    flaky = (
        "import pathlib, sys\n"
        "rounds = pathlib.Path(sys.argv[1]); rounds.open('a').write('x')\n"
        "if len(rounds.read_text()) == 2:\n"
        "    print('trainer: FAILED a/test_b.py::test_c[d-1] - assert 1 == 2'); sys.exit(1)\n"
    )
    command = [sys.executable, "-c", flaky, str(tmp_path / "rounds")]
    assert not stress.stress(command, 3, kept)
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith(" s, green") for line in lines] == [True, False, True, False]
    assert lines[1].startswith("round 2 of 3: ")
    assert lines[1].endswith(f" s, FAILED: a/test_b.py::test_c[d-1]; its output is in {kept / 'round-2.log'}")
    assert lines[-1] == "a/test_b.py::test_c[d-1] failed in 1 of 3 rounds: 2"
    assert [path.name for path in kept.iterdir()] == ["round-2.log"]
    assert "assert 1 == 2" in (kept / "round-2.log").read_text(encoding="utf-8")


def test_what_fails_without_a_test_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not stress.stress([sys.executable, "-c", "raise SystemExit(7)"], 1, tmp_path)
    assert "exit code 7 failed in 1 of 1 rounds: 1" in capsys.readouterr().out


def test_the_names_of_a_summary() -> None:
    text = (
        "unit: ERROR tests/e2e/test_x.py - ModuleNotFoundError: No module named 'x'\n"
        "FAILED tests/test_y.py::test_z\n"
        "FAILED tests/test_y.py::test_z\n"
        "1 failed, ERROR in the middle\n"
    )
    assert stress.failed_tests(text) == ["tests/e2e/test_x.py", "tests/test_y.py::test_z"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rounds", "0", "e2e"], "'0' is no number of rounds; give 1 or more"),
        (["--rounds", "x", "e2e"], "'x' is no number of rounds; give 1 or more"),
        (
            ["nothing"],
            "invalid choice: 'nothing' (choose from "
            "'e2e', 'trainer', 'integration', 'unit', 'molecule', 'machines')",
        ),
    ],
)
def test_bad_input_runs_nothing(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        stress.main(words)
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err
