# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of a log that several processes read give the same records as the whole log."""

from __future__ import annotations

import functools
import itertools
import os
import pickle
import random
import signal
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from rdm_log import parallel, scan
from rdm_log.runs import runs
from rdm_log.summary import plain
from tests.unit.log.comparable import by_kind

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
    found = list(parallel.records_of(names))
    assert processes == [2]
    alone = list(scan.records([data]))
    assert by_kind(found) == by_kind(alone)
    assert list(map(plain, runs(found, series=True))) == list(map(plain, runs(alone, series=True)))


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


def test_a_part_that_begins_below_a_progress_bar_has_its_step(tmp_path: Path) -> None:
    """Hugging Face's Trainer logs no number of a step."""
    path = tmp_path / "n1.out"
    bar = "\r  1%|          | {}/99999 [00:17<01:06,  1.25s/it]\r{{'loss': 2.5, 'epoch': 0.{}}}\r\n"
    path.write_text("".join(bar.format(number, number) for number in range(1000, 1100)))
    parts = list(parallel._Parts([path], 460, 100))
    assert any(path.read_bytes()[part.begin :].startswith(b"{") for part in parts)
    read = [pickle.loads(parallel._read_part((path,), part))[0] for part in parts]
    assert list(itertools.chain(*read)) == list(scan.records([path.read_bytes()]))


def test_the_border_of_a_part_takes_no_memory_for_a_long_line(tmp_path: Path) -> None:
    path = tmp_path / "n1.out"
    path.write_bytes(b"a word " * 500_000 + b"\n" + log(2))
    tracemalloc.start()
    parts = list(parallel._Parts([path], 5000, 10_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert parts[1].begin == path.read_bytes().index(b"\n") + 1
    assert peak < 1_000_000
