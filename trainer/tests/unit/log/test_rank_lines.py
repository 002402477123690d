# SPDX-License-Identifier: GPL-3.0-or-later
"""Timers of all ranks, with other lines between them, however the log is cut into blocks."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rdm_log.records import RankTimes
from rdm_log.scan import TIMERS, records
from tests.unit.log.comparable import by_kind

STEP = b" iteration        7/      99 | lm loss: 6.0E+00 | grad norm: 1.0 |"
ODD = [
    STEP,
    b"",
    b"  ",
    b"rank 1: 2.00",
    b" rank  1: 2.00",
    b"     rank  1: ",
    b"     rank  1: nan",
    b"     rank  1: -2.00",
    b"     rank  1: 1.2.3",
    b"     rank  1: 12",
    b"     rank  1:  2.00",
    b"     rank 1 2: 2.00",
    b"     rank  1: 2.00 ",
    b"     rank  1: 2.00\t",
    b"     rank  1: 2.00" + STEP,
    b"     rank 1234567890: 2.00",
    b"     rank  1: 12345678901234567.25",
    b"     rank  1: 0.1234567890123456789012345",
    b"     rank  1: 0." + b"1" * 400,
    b"     rank  1: 2.00\x1b[0m",
    b"     \x1b[31mrank  1: 2.00",
    b"  rank 7: 3.25",
    b"n1:     rank  1: 2.00",
    b"[after megatron is initialized] datetime: 2023-06-14 16:08:12 ",
    b"  num_layers ...................................... 24",
    b"  successfully saved checkpoint at iteration      50 to /checkpoints/gpt",
    b"steps: 7 loss: 2.5 iter time (s): 0.5 samples/sec: 8.0",
    b"  abc ....................... def:",
    STEP + b"times across ranks (ms):",
    b" x: times across ranks (ms): x",
    b"(min, max) time across ranks (ms):",
    b"    forward-compute ................................: (90.88, 1094.57)",
    b" forward-compute start time lst: 1686726501.0 1686726501.5",
    b" forward-compute end time lst: 1686726501.0 1686726501.5",
    b"x" * 70_000,
]
TAGS = [b"", b"n1: ", b"[default7]:"]


@st.composite
def sections(draw: st.DrawFn) -> bytes:
    """Return steps with timers of all ranks, some of them missing, with other lines between."""
    tag = draw(st.sampled_from(TAGS))
    names = draw(st.lists(st.sampled_from([b"forward-compute", b"optimizer", b"a b.c/d"]), max_size=3))
    dice = random.Random(draw(st.integers(0, 99)))
    first, count = draw(st.sampled_from([(0, 12), (95, 12), (996, 8), (3, 1), (999_999_995, 9)]))
    width = draw(st.sampled_from([2, 2, 3, 11]))
    digits = draw(st.sampled_from([2, 2, 2, 0, 1, 6]))
    top = draw(st.sampled_from([12.0, 1500.0, 2e6]))
    is_whole = draw(st.booleans())
    step = draw(st.sampled_from([0, 1, 40, 41]))
    lines = []
    for number in range(step, step + draw(st.sampled_from([1, 1, 2, 12]))):
        lines += [STEP.replace(b"       7/", f"{number:8d}/".encode())] * draw(st.integers(0, 1))
        lines.append(tag + TIMERS)
        for name in names:
            # A lost block of the log takes a name with it.
            if is_whole or dice.random() < 0.8:
                lines.append(tag + b"  " + name + b":")
            for rank in range(first, first + count):
                if is_whole or dice.random() < 0.9:
                    time = f"{dice.uniform(0.0, top):.{digits}f}"
                    lines.append(tag + f"     rank {rank:{width}d}: {time}".encode())
                if dice.random() < (0.01 if is_whole else 0.1):
                    lines.append(draw(st.sampled_from(ODD)))
    lines += draw(st.lists(st.sampled_from(ODD), max_size=2))
    return draw(st.sampled_from([b"\n", b"\n", b"\r\n"])).join(lines) + b"\n"


@settings(max_examples=60, deadline=None)
@given(st.lists(sections(), min_size=1, max_size=3), st.integers(1, 60), st.integers(50, 100_000))
@example([b"times across ranks (ms):\n  a:\n" + b"     rank  1: 0.00\n" * 3], 1, 64)
def test_blocks_give_the_records_of_the_whole_log(parts: list[bytes], cut: int, size: int) -> None:
    data = b"".join(parts)[:-cut]
    blocks = [data[begin : begin + size] for begin in range(0, len(data), size)]
    assert by_kind(records(blocks)) == by_kind(records([data]))


@pytest.mark.parametrize("size", [10_000, 300])
def test_a_heading_ends_the_name_above_it(size: int) -> None:
    """If the name below it is lost, the times belong to no timer, also in the next block."""
    ranks = b"".join(b"     rank %2d: %d.25\n" % (rank, rank) for rank in range(12))
    data = TIMERS + b"\n  a:\n" + ranks + TIMERS + b"\n" + ranks + b"  b:\n" + ranks
    blocks = [data[begin : begin + size] for begin in range(0, len(data), size)]
    times, _ = by_kind(records(blocks))
    assert times == [(name, rank, rank + 0.25) for name in "ab" for rank in range(12)]


def test_distant_line_ends_the_timers() -> None:
    """A line more than 64 KiB after the last one belongs to no timer."""
    head = b"times across ranks (ms):\n  a:\n     rank  0: 1.00\n"
    for silence, count in ((60_000, 2), (70_000, 1)):
        data = head + b"x" * silence + b"\n     rank  1: 2.00\n"
        found = list(records([data]))
        assert sum(len(one.ranks) for one in found if isinstance(one, RankTimes)) == count
