# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines read in bulk, and parts read by several processes, give the same records as lines read one by one."""

from __future__ import annotations

import functools
import itertools
import math
import os
import pickle
import random
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_log import bulk, parallel, scan
from rdm_log.bulk import Many, Steps
from rdm_log.lines import Record, Step, Timer
from rdm_log.runs import runs
from rdm_log.scan import RankTimers
from rdm_log.summary import plain
from tests.unit.log.comparable import one_by_one

FIELDS: dict[str, tuple[str, float]] = {
    "consumed samples": ("{:12.0f}", 1e6),
    "elapsed time per iteration (ms)": ("{:.1f}", 1500.0),
    "learning rate": ("{:.3E}", 1e-4),
    "global batch size": ("{:5.0f}", 64.0),
    "lm loss": ("{:.6E}", 9.0),
    "loss scale": ("{:.1f}", 65536.0),
    "grad norm": ("{:.3f}", 3.0),
    "number of skipped iterations": ("{:3.0f}", 1.0),
    "number of nan iterations": ("{:3.0f}", 0.0),
}
ODD = (
    " iteration        9/     100 | lm loss: nan | grad norm: inf |\n",
    " iteration        9/  100 | lm loss: 1.0 | lo[Rank 4] (after 2 iterations) memory (MB) | reserved: 7\n",
    " validation loss at iteration 100 | lm loss value: 4.583354E+00 | lm loss PPL: 9.784201E+01 | \n",
    "  successfully saved checkpoint at iteration      50 to /checkpoints/gpt\n",
    "[after megatron is initialized] datetime: 2023-06-14 16:08:12 \n",
    "a word\n\n",
    "\x1b[32ma green word\x1b[0m\n",
    "50 %|#####     |\r 60 %|######    |\r\n",
    " iteration        3/infinity | consumed samples:           24 | lm loss: 2.0E+00 |\n",
    " iteration 7/ 9 | a: 1 | iteration 8/ 9 | a: 2 |\n",
    " iteration       30/      50 | lm loss: 1.0E+00 |",
    "done |\n",
)


def log(seed: int, groups: int = 6) -> bytes:
    """Return a log with long and short stretches of training lines of several forms, and others between."""
    dice = random.Random(seed)
    lines: list[str] = []
    number = 0
    for _ in range(groups):
        names = dice.sample(list(FIELDS), dice.randint(1, len(FIELDS)))
        unit = dice.choice(["(ms)", "(s)"])
        before = dice.choice(["", "", "n2: ", "[default7]:", " [2025-03-04 05:{:02d}:07.123456]", "{}: "])
        number = dice.choice([0, number, max(0, number - 5), number + 100])
        for _ in range(dice.choice([3, 9, 40, 150])):
            number += dice.choice([1, 1, 10])
            fields = "".join(
                f" {name.replace('(ms)', unit)}: {FIELDS[name][0].format(dice.random() * FIELDS[name][1])} |"
                for name in names
            )
            lines.append(f"{before.format(number // 100 % 60)} iteration {number:8d}/   99999 |{fields}\n")
            if dice.random() < 0.02:
                lines.append(dice.choice(ODD))
        if dice.random() < 0.5:
            tag = dice.choice(["", "n2: "])
            lines.append(f"{tag}times across ranks (ms):\n{tag}  forward-compute:\n")
            moments = " ".join("1686726500.123456" for _ in range(dice.choice([1, 2000, 8000])))
            for rank in range(dice.choice([2, 30])):
                lines.append(f"{tag}     rank {rank:2d}: {dice.random():.2f}\n")
                lines.append(f" forward-compute start time lst: {moments}\n" if dice.random() < 0.1 else "")
    return "".join(lines).encode()


def cut(data: bytes, dice: random.Random) -> Iterator[bytes]:
    while data:
        size = dice.choice([1, 300, 5000, 60_000, len(data)])
        yield data[:size]
        data = data[size:]


def by_kind(found: Iterable[Record]) -> dict[str, list[str]]:
    """Return records in order: a block's timers come before its lines, wherever it was cut."""
    lines: dict[str, list[str]] = {}
    for one in found:
        lines.setdefault("timers" if isinstance(one, Timer) else "lines", []).append(repr(one))
    return lines


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_lines_in_bulk_are_parsed_as_one_by_one(seed: int, every: bool) -> None:
    data = log(seed)
    # A log that was cut by its writer, too.
    data = data[: len(data) - seed % 50]
    found = list(scan.records_in_bulk(cut(data, random.Random(seed)), every=every))
    known = list(scan.records([data]))
    # The timers before a stretch come before it; each of the two kinds keeps its order.
    assert [one for one in one_by_one(found) if hasattr(one, "rank")] == [
        o for o in known if hasattr(o, "rank")
    ]
    assert [repr(o) for o in one_by_one(found) if not hasattr(o, "rank")] == [
        repr(o) for o in known if not hasattr(o, "rank")
    ]
    for steps in found:
        if isinstance(steps, Steps):
            lines = list(steps.each())
            assert list(steps.iterations) == [line.iteration for line in lines]
            assert steps.times == (lines[0].time, lines[-1].time)
            for name, column in steps.values.items():
                assert list(map(repr, column)) == [repr(line.values[name]) for line in lines]
            if every:
                assert list(steps.values) == list(lines[0].values)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_runs_of_lines_in_bulk_are_those_of_lines(seed: int, series: bool) -> None:
    data = log(seed, groups=10)
    in_bulk = runs(scan.records_in_bulk([data], every=series), series=series)
    alone = runs(scan.records([data]), series=series)
    assert [_about(plain(run)) for run in in_bulk] == [_about(plain(run)) for run in alone]


def _about(value: Any) -> Any:
    """Return a value to twelve digits: means are summed in another order."""
    if isinstance(value, dict):
        return {key: _about(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_about(item) for item in value]
    return float(f"{value:.12g}") if isinstance(value, float) and math.isfinite(value) else value


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=3)), max_size=6))
def test_damaged_lines_are_parsed_as_one_by_one(seed: int, damages: list[tuple[int, bytes]]) -> None:
    """Overwritten bytes leave the length of each line as it was."""
    data = bytearray(log(seed))
    for position, damage in damages:
        position %= len(data)
        data[position : position + len(damage)] = damage[: len(data) - position]
    found = one_by_one(scan.records_in_bulk([bytes(data)], every=True))
    assert by_kind(found) == by_kind(scan.records([bytes(data)]))


@given(st.sampled_from(b"0123456789.E+- |:/n\x00\n"), st.integers(0, 73))
def test_any_byte_of_a_line_counts(byte: int, position: int) -> None:
    line = " iteration {:8d}/    9999 | lm loss: {:.6E} | consumed tokens: {:12d} |\n"
    lines = [bytearray(line.format(n, 9 / n, n * 4096).encode()) for n in range(1, 60)]
    lines[30][position] = byte
    data = b"".join(lines)
    for every in (True, False):
        found = one_by_one(scan.records_in_bulk([data], every=every))
        assert list(map(repr, found)) == list(map(repr, scan.records([data])))
        in_bulk = runs(scan.records_in_bulk([data], every=every), series=every)
        assert [plain(run) for run in in_bulk] == [
            plain(run) for run in runs(scan.records([data]), series=every)
        ]


@pytest.mark.parametrize("before", ["", "n2: ", " [2025-03-04 05:06:{:02d}.123456]"])
def test_most_of_a_log_of_steps_is_read_in_bulk(before: str) -> None:
    line = " iteration {0:8d}/ 9999 | lm loss: {1:.6E} | grad norm: {1:.3f} |\n"
    data = "".join(before.format(n % 60) + line.format(n, 9 / n) for n in range(1, 3000)).encode()
    found = list(scan.records_in_bulk([data], every=False))
    assert sum(len(one.iterations) for one in found if isinstance(one, Steps)) > 2900
    odd = data.replace(b" iteration      500/", b"hello\n iteration      500/")
    found = list(scan.records_in_bulk([odd], every=False))
    assert sum(len(one.iterations) for one in found if isinstance(one, Steps)) > 2900


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two processors, and no threads of other tests; returns the numbers of processes started."""
    started: list[int] = []
    real = parallel._processes

    def make(workers: int) -> ProcessPoolExecutor:
        started.append(workers)
        return real(workers)

    monkeypatch.setattr(parallel, "_processes", make)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("threading.active_count", lambda: 1)
    return started


@pytest.mark.parametrize(
    ("reach", "killed_from"), [(100, None), (10**6, None), (100, 0), (100, 60_000), (10**6, 60_000)]
)
@pytest.mark.parametrize("seed", range(3))
def test_several_processes_read_what_one_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes: list[int],
    seed: int,
    reach: int,
    killed_from: int | None,
) -> None:
    """Also when one of them is killed at a part, as by the kernel when memory runs out."""
    data = log(seed, groups=30)
    names = [tmp_path / "n1.out.2", tmp_path / "n1.out.1", tmp_path / "n1.out"]
    for name, part in zip(names, (data[:9999], data[9999:77_777], data[77_777:]), strict=True):
        name.write_bytes(part)
    monkeypatch.setattr(parallel, "PART", 10_000)
    monkeypatch.setattr(parallel, "REACH", reach)
    itself = os.getpid()

    def read(
        paths: Sequence[Path], block: int = scan.BLOCK, *, begin: int = 0, end: int = scan.END
    ) -> Iterator[bytes]:
        if killed_from is not None and begin >= killed_from and os.getpid() != itself:
            os.kill(os.getpid(), signal.SIGKILL)
        return scan.read(paths, block, begin=begin, end=end)

    monkeypatch.setattr(parallel, "read", read)
    assert len(list(parallel._Parts(names, 10_000, reach))) > 5
    found = list(parallel.records_of(names, every=True))
    assert processes == [2]
    known = list(scan.records([data]))
    others = one_by_one(one for one in found if not isinstance(one, Steps))
    for kind in {type(one) for one in known} - {Step}:
        assert [repr(one) for one in others if type(one) is kind] == [
            repr(o) for o in known if type(o) is kind
        ]
    left = (one for one in known if isinstance(one, Step))
    for one in found:
        if isinstance(one, Step):
            assert repr(one) == repr(next(left))
        elif isinstance(one, Steps):
            lines = list(itertools.islice(left, len(one.iterations)))
            assert list(one.iterations) == [line.iteration for line in lines]
            assert list(map(repr, [one.first(), *one.last(8)])) == list(map(repr, [lines[0], *lines[-8:]]))
            for key, column in one.values.items():
                assert list(map(repr, column)) == [repr(line.values[key]) for line in lines]
    assert next(left, None) is None
    in_parallel = runs(parallel.records_of(names, every=True), series=True)
    alone = runs(scan.records([data]), series=True)
    assert [_about(plain(run)) for run in in_parallel] == [_about(plain(run)) for run in alone]


def test_steps_are_handed_over_without_their_lines(tmp_path: Path) -> None:
    """The lines are most of the bytes, and only those of steps that begin a run or are odd are used."""
    line = " iteration {:8d}/ 9999 | time: {:200d} | lm loss: {} | grad norm: {:.3f} |\n"
    path = tmp_path / "n1.out"
    losses = [f"{9 / n:.6E}" if n < 21_000 else "nan" for n in range(1, 22_000)]
    path.write_text("".join(line.format(n % 9999 + 1, n, loss, 1) for n, loss in enumerate(losses)))
    records, _ = parallel._read_part((path,), False, parallel._Part(0, scan.END, True))
    assert len(pickle.dumps(records)) < path.stat().st_size / 2
    steps = [one for one in records if isinstance(one, Steps)]
    goes_on = [later.iterations[0] > one.iterations[-1] for one, later in itertools.pairwise(steps)]
    is_number = [math.isfinite(one.ranges["lm loss"].total) for one in steps]
    assert goes_on.count(False) == 2
    assert not all(is_number)
    assert [one.is_whole for one in steps] == [
        True,
        *(not (a and b) for a, b in zip(goes_on, is_number[1:], strict=True)),
    ]
    assert all(one.data.count(b"\n") == 9 for one in steps if not one.is_whole)


@pytest.mark.parametrize("seed", range(4))
def test_a_log_that_is_rotated_or_cut_after_it_was_read_gives_what_was_read(
    tmp_path: Path, seed: int
) -> None:
    """The processes have read everything before this one needs a line."""
    data = log(seed, groups=30)
    path, rotated = tmp_path / "n1.out", tmp_path / "n1.out.1"
    parts = list(parallel._Parts([_written(path, data)], 10_000, 10**6))
    timers = RankTimers()
    read: list[Record | Many] = []
    for part in parts:
        if timers.are_open and not part.is_sure:
            blocks = scan.read([path], begin=part.begin, end=part.end)
            read += scan.records_in_bulk(blocks, every=True, timers=timers)
        else:
            found, timers = pickle.loads(pickle.dumps(parallel._read_part((path,), True, part)))
            read += found
    assert not all(one.is_whole for one in read if isinstance(one, Steps))
    path.rename(rotated)
    _written(path, b"a word of another program\n" * 99)
    rotated.write_bytes(b"")
    alone = runs(scan.records([data]), series=True)
    assert [_about(plain(run)) for run in runs(read, series=True)] == [_about(plain(run)) for run in alone]


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _length(reader: int, path: Path) -> int:
    if path.name == "77" and os.getpid() == reader:
        raise OSError
    return len(path.name)


def _length_or_death(reader: int, path: Path) -> int:
    if path.name == "77" and os.getpid() != reader:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(path.name)


@pytest.mark.parametrize("length", [_length, _length_or_death])
def test_many_files_are_read_by_several_processes_or_by_one_when_another_is_killed(
    processes: list[int], length: Callable[[int, Path], int]
) -> None:
    paths = [Path(str(number)) for number in range(200)]
    found = parallel.of_each(functools.partial(length, os.getpid()), paths)
    assert found == [len(path.name) for path in paths]
    assert processes == [2]


def test_parts_are_the_whole_log(tmp_path: Path) -> None:
    path = tmp_path / "n1.out"
    path.write_bytes(log(1))
    parts = list(parallel._Parts([path], 5000, 1000))
    assert (
        b"".join(b"".join(scan.read([path], 999, begin=p.begin, end=p.end)) for p in parts)
        == path.read_bytes()
    )
    assert all(later.begin == earlier.end for earlier, later in itertools.pairwise(parts))


def test_what_is_beyond_any_number_is_no_step_and_no_error() -> None:
    data = (" iteration %s/ 9 | lm loss: 1.0 |\n" % ("9" * 30) * 20).encode()
    assert one_by_one(scan.records_in_bulk([data], every=True)) == []
    assert bulk._steps(data, every=True) is None
