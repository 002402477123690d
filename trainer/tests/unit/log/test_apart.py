# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables that are taken out of a log say what they say line by line, of the same runs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_log import apart, parallel
from rdm_log.apart import are_tables, tables_apart
from rdm_log.bulk import ShortestLongest, Steps
from rdm_log.lines import Timer
from rdm_log.runs import runs
from rdm_log.scan import records, records_together
from rdm_log.summary import plain
from tests.unit.log.told import are_alike, by_kind, one_by_one

HEADING = "(min, max) time across ranks (ms):"
STEP = " iteration {:8d}/   99999 | elapsed time per iteration (ms): {:.1f} | lm loss: {:.6E} |\n"
NAMES = ("forward-backward", "forward-compute", "a/b_c", "x", "optimizer-copy-main-to-model-params", "n" * 61)
TIMES = "".join(
    f"\n    {name:.<48}: {times}"
    for name, times in (("a ", "(0.07, 1234.56)"), ("b ", "(99.99, 100.00)"), ("c ", "(1.00, 2.00)"))
)
ODD = (
    "[after megatron is initialized] datetime: 2023-06-14 16:08:12 \n",
    "  num_layers ...................................... 24\n",
    "  num_layers ...................................... (24, 25)\n",
    " validation loss at iteration 100 | lm loss value: 4.583354E+00 | lm loss PPL: 9.784201E+01 | \n",
    "  successfully saved checkpoint at iteration      50 to /checkpoints/gpt\n",
    "steps: 7 loss: 2.5 iter time (s): 0.5 samples/sec: 8.0\n",
    "[2023-06-14 16:08:12] [INFO] step=5, skipped=0, lr=[0.0001], mom=[(0.9, 0.95)]\n",
    "[Rank 4] (after 2 iterations) memory (MB) | allocated: 7.5 | max allocated: 8.0\n",
    "times across ranks (ms):\n  a:\n     rank  0: 1.50\n     rank  1: 2.50\n",
    "    forward-compute ................................: (1, 2)\n",
    "    forward-compute ................................: (1., 2.)\n",
    "    forward-compute ................................: (1.5, 2.25)\n",
    "    forward-compute ................................: (1.25, 2.50) \n",
    "    forward-compute ................................: (-1.25, 2.50)\n",
    "    forward-compute ................................: (nan, 2.50)\n",
    "    forward-compute ................................: ( 1.25, 2.50)\n",
    "    forward-compute ................................: (1.25,2.50)\n",
    "    forward-compute ................................: (1.25, 12345678901234.50)\n",
    "    forward-compute ................................: 2.50\n",
    "    forward-compute ................................ (1.25, 2.50)\n",
    "   y forward-compute ................................: (1.25, 2.50)\n",
    " forward-compute ................................: (1.25, 2.50)\n",
    "    forward compute ................................: (1.25, 2.50)\n",
    " iteration 5/ 9 | a: 1 |    forward-compute ................: (1.25, 2.50)\n",
    "    forward-compute ................................: (3.25, 4.50) | iteration 5/ 9 | lm loss: 2.0 |\n",
    " iteration 5/ 9 | lm loss: 2.0 |" + HEADING + "\n",
    "(1.25, 2.50)\n",
    ")\n",
    "\n",
    "a word (of nobody)\n",
)


def log(seed: int) -> bytes:
    """Return steps with tables, now and then in another form, or with something else between."""
    dice = random.Random(seed)
    tag, end = dice.choice(["", "", "n1: ", "[default7]:"]), dice.choice(["\n", "\n", "\r\n"])
    lines: list[str] = []
    number = dice.choice([0, 95])
    for _ in range(dice.choice([3, 30, 90])):
        number += dice.choice([1, 1, 1, 1, 1, 1, 10, 0, -5 if number > 9 else 1])
        lines.append(STEP.format(number, 1400 + dice.random() * 3, 9 / (1 + number)))
        lines.append(f"{tag}{HEADING}\n" if dice.random() < 0.95 else "")
        names = NAMES if dice.random() < 0.9 else dice.sample(NAMES, 2)
        for name in names:
            least, span = (10 ** dice.uniform(-3, 5) for _ in range(2))
            lines.append(f"{tag}    {(name + ' ').ljust(48, '.')}: ({least:.2f}, {least + span:.2f})\n")
            if dice.random() < 0.01:
                lines.append(dice.choice(ODD))
    return "".join(lines).replace("\n", end).encode()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**9),
    st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=3)), max_size=4),
    st.integers(200, 100_000),
    st.integers(0, 80),
)
def test_they_say_what_they_say_line_by_line(
    seed: int, damages: list[tuple[int, bytes]], size: int, cut: int
) -> None:
    """The same times of each timer, and the same runs with the same timers, however the log is cut."""
    damaged = bytearray(log(seed))
    for place, damage in damages:
        place %= len(damaged)
        damaged[place : place + len(damage)] = damage
    data = bytes(damaged[: len(damaged) - cut])
    blocks = [data[begin : begin + size] for begin in range(0, len(data), size)]
    together = list(records_together(blocks, every=True, tables=True))
    known = list(records(blocks))
    assert by_kind(one_by_one(together)) == by_kind(known)
    for series in (True, False):
        told, alone = ([plain(run) for run in runs(found, series=series)] for found in (together, known))
        assert are_alike(told, alone), (told, alone)


@settings(deadline=None)
@given(st.sampled_from(b"0123456789.,() -:xN|\n\x00"), st.integers(0, 70))
def test_any_byte_of_a_line_counts(byte: int, place: int) -> None:
    line = "    a-b ............................................: ({:.2f}, {:.2f})\n"
    lines = [bytearray(line.format(n / 9, n / 3).encode()) for n in range(900, 1000)]
    assert {len(one) for one in lines} == {71}
    lines[50][place] = byte
    data = b"".join(lines)
    found = one_by_one(list(records_together([data], every=True, tables=True)))
    assert by_kind(found) == by_kind(list(records([data])))


def test_megatrons_lines_are_taken_out_and_its_steps_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_FEW", 1)
    table = HEADING + TIMES + "\n"
    data = "".join(STEP.format(number, 1400.0, 2.0) + table for number in range(1, 200)).encode()
    own = tables_apart(data)
    assert own is not None
    assert own.rest == "".join(STEP.format(number, 1400.0, 2.0) for number in range(1, 200)).encode()
    steps, *others = records_together([data], every=True, tables=True)
    assert isinstance(steps, Steps)
    assert [list(one.each()) for one in others if isinstance(one, ShortestLongest)] == [
        [Timer("a", 1234.56, least=0.07)] * 199,
        [Timer("b", 100.0, least=99.99)] * 199,
        [Timer("c", 2.0, least=1.0)] * 199,
    ]


def test_where_they_are_dense_a_long_log_is_read_with_numpy(tmp_path: Path) -> None:
    table = HEADING + TIMES + "\n"
    data = (STEP.format(7, 1400.0, 2.0) + table).encode() * 400
    assert are_tables(data[:4096])
    assert not are_tables(b"a word\n" * 9 + table.encode())
    path = tmp_path / "n1.out"
    path.write_bytes(data)
    assert parallel._is_dense([path], len(data))
