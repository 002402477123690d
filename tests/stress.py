"""Run test suites again and again beside a CPU burner, and say which round failed and in what.

    python tests/stress.py --rounds 10 e2e trainer integration unit molecule

A suite is what `make suite-NAME` runs; three run at once, as `make test` has it. The output of a round that
fails is kept in `.artifacts/stress/`. The exit code is 0 when every round was green, 1 when not.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITES = ("e2e", "trainer", "integration", "unit", "molecule", "machines")
KEPT = ROOT / ".artifacts" / "stress"

# It ends with whoever started it, however that ends.
_BURN = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    sum(range(1_000_000))
"""
# A line of pytest's short summary, perhaps after the name of the suite.
_FAILED = re.compile(r"^(?:\S+: )?(?:FAILED|ERROR) (\S+?)(?: - .*)?$", re.MULTILINE)


@contextmanager
def burner(processes: int) -> Iterator[list[int]]:
    """Keep so many cores busy for the length of a with block; yield the process ids."""
    command = [sys.executable, "-S", "-c", _BURN, str(os.getpid())]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(processes):
            started.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def run(command: Sequence[str], log: Path) -> int:
    """Run a command with its output in a file; return its exit code. What interrupts this interrupts it."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        ) as process,
    ):
        try:
            return process.wait()
        except BaseException:
            # As Ctrl-C does: the tests take away what they have made. A second one ends them at once.
            try:
                os.killpg(process.pid, signal.SIGINT)
                process.wait()
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            raise


def failed_tests(text: str) -> list[str]:
    """Return the names of the tests that pytest's summary says failed."""
    return list(dict.fromkeys(_FAILED.findall(text)))


def stress(command: Sequence[str], rounds: int, kept: Path) -> bool:
    """Run a command in rounds, print a line for each, and return whether all were green.

    Args:
        command: What runs the suites.
        rounds: How many.
        kept: The directory for the output of what fails.
    """
    kept.mkdir(parents=True, exist_ok=True)
    for old in kept.glob("*.log"):
        old.unlink()
    found: dict[str, list[int]] = {}
    for number in range(1, rounds + 1):
        log = kept / f"round-{number}.log"
        began = time.monotonic()
        code = run(command, log)
        line = f"round {number} of {rounds}: {time.monotonic() - began:.0f} s"
        if code == 0:
            log.unlink()
            print(f"{line}, green", flush=True)
            continue
        names = failed_tests(log.read_text(encoding="utf-8", errors="replace")) or [f"exit code {code}"]
        for name in names:
            found.setdefault(name, []).append(number)
        print(f"{line}, FAILED: {', '.join(names)}; its output is in {log}", flush=True)
    for name, numbers in found.items():
        print(f"{name} failed in {len(numbers)} of {rounds} rounds: {', '.join(map(str, numbers))}")
    return not found


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rounds; give 1 or more")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Be the program."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rounds", type=_count, default=10, metavar="N", help="how often; at least 1")
    parser.add_argument("suites", nargs="+", choices=SUITES, help="what to run, begun in this order")
    given = parser.parse_args(arguments)
    # A termination ends the burner and the tests, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    make = ["make", "--no-print-directory", "--jobs=3", "--keep-going"]
    with burner(len(os.sched_getaffinity(0))):
        return 0 if stress([*make, *(f"suite-{name}" for name in given.suites)], given.rounds, KEPT) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
