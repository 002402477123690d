# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of logs: those that programs are known to write, and arbitrary ones."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_log import lines, scan
from rdm_log.grammars import MILLISECONDS
from rdm_log.records import (
    EngineStep,
    Evaluation,
    Memory,
    Milestone,
    RankTimes,
    Record,
    Step,
    Throughput,
    Timer,
)
from rdm_trainer import metrics

CORPUS = Path(__file__).parent / "corpus"
EMPTY = {
    **{"tag": "", "time": "", "least": None},
    **{"is_cut": False, "is_numbered": True, "is_torn": False},
}
WITHOUT_PREFIX: dict[str, Any] = {"tag": "", "time": "", "is_cut": False, "is_torn": False}


def entries() -> Iterator[Any]:
    for entry in (CORPUS / "lines.txt").read_text().split("\n## ")[1:]:
        title, _, rest = entry.partition("\n")
        text, *expected = re.split(r"^=> ", rest, flags=re.MULTILINE)
        yield pytest.param(text.removesuffix("\n"), "".join(expected).strip().split("\n"), id=title[:40])


def written(record: Record) -> list[str]:
    """Return a record as the corpus writes it: the times of ranks one by one."""
    if isinstance(record, RankTimes):
        return [
            f"Timer {json.dumps({'name': record.name, 'milliseconds': milliseconds, 'rank': rank})}"
            for rank, milliseconds in zip(record.ranks, record.milliseconds, strict=True)
        ]
    fields = {key: value for key, value in record._asdict().items() if EMPTY.get(key, ...) != value}
    return [f"{type(record).__name__} {json.dumps(fields)}"]


def read(text: str | bytes, size: int = scan.BLOCK) -> list[Record]:
    data = text.encode() if isinstance(text, str) else text
    return list(scan.records(data[at : at + size] for at in range(0, len(data), size)))


@pytest.mark.parametrize(("text", "expected"), list(entries()))
@pytest.mark.parametrize("size", [scan.BLOCK, 97])
def test_known_lines_of_programs(text: str, expected: list[str], size: int) -> None:
    found = [line for record in read(text + "\n", size) for line in written(record)]
    # The order of a line's timers, and of lines that ranks wrote at once, does not matter.
    assert sorted(_normal(one) for one in found) == sorted(_normal(e) for e in expected if e != "nothing")


def _normal(line: str) -> str:
    kind, _, fields = line.partition(" ")
    numbers = json.loads(fields, parse_int=float, parse_float=float)
    return f"{kind} {json.dumps(numbers, sort_keys=True)}"


# --- any record, in any order of its fields, between any other lines, cut anywhere

NAMES = st.sampled_from(
    [
        "consumed samples",
        "consumed tokens",
        MILLISECONDS,
        "learning rate",
        "global batch size",
        "lm loss",
        "loss scale",
        "grad norm",
        "num zeros",
        "params norm",
        "curriculum seqlen",
        "number of skipped iterations",
        "number of nan iterations",
        "samples per second",
        "tokens per gpu per second (tgs)",
        "TFLOPs",
        "MFU (%)",
        "a field that nobody has thought of",
    ]
)
NUMBERS = st.one_of(
    st.floats(-1e12, 1e12), st.integers(0, 10**12).map(float), st.sampled_from([0.0, 1e-30, float("inf")])
)
WORDS = st.text(st.characters(codec="ascii", categories=["Ll", "Nd"]), min_size=1, max_size=12)
TAGS = st.one_of(
    st.just(""), WORDS, st.integers(0, 9999).map(str), st.integers(0, 7).map(lambda n: f"[default{n}]")
)
SIZES = st.sampled_from(["allocated", "max allocated", "reserved", "max reserved"])


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, Step]:
    values = draw(st.dictionaries(NAMES, NUMBERS, min_size=1))
    total = draw(st.integers(1, 10**8))
    number = draw(st.integers(1, total))
    tag = draw(TAGS)
    time = draw(st.sampled_from(["", "2025-03-04 05:06:07"])) if not tag else ""
    before = f"{tag}: " if tag else f" [{time}]" if time else ""
    fields = "".join(f" {name}: {value!r} |" for name, value in values.items())
    return f"{before} iteration {number:8d}/{total:8d} |{fields}", Step(number, total, values, tag, time)


@st.composite
def others(draw: st.DrawFn) -> tuple[str, Record]:
    number = draw(st.integers(0, 10**6))
    match draw(st.sampled_from(["memory", "milestone", "evaluation", "engine", "throughput", "timer"])):
        case "memory":
            sizes = draw(st.dictionaries(SIZES, st.floats(0, 1e6).map(lambda x: round(x, 6)), min_size=1))
            fields = "".join(f" | {name}: {value:f}" for name, value in sizes.items())
            record: Record = Memory(number, 20, {name: float(f"{v:f}") for name, v in sizes.items()})
            return f"[Rank {number}] (after 20 iterations) memory (MB){fields}", record
        case "milestone":
            name = " ".join(draw(st.lists(WORDS, min_size=1, max_size=5)))
            return f"[{name}] datetime: 2023-06-14 16:08:12 ", Milestone(name, "2023-06-14 16:08:12")
        case "evaluation":
            losses = {"lm loss value": draw(st.floats(0, 100)), "lm loss PPL": draw(st.floats(1, 1e9))}
            fields = "".join(f"{name}: {value!r} | " for name, value in losses.items())
            where = f"iteration {number}"
            return f" validation loss at {where} | {fields}", Evaluation(where, losses)
        case "engine":
            return (
                f"steps: {number} loss: 2.5000 iter time (s): 0.500 samples/sec: 125.000",
                EngineStep(number, {MILLISECONDS: 500.0, "samples per second": 125.0, "lm loss": 2.5}),
            )
        case "throughput":
            return (
                "epoch=0/micro_step=8/global_step=4, RunningAvgSamplesPerSec=1.25, "
                f"CurrSamplesPerSec={number}.5, MemAllocated=1.5GB, MaxMemAllocated=2.25GB",
                Throughput(
                    {"samples per second": number + 0.5}, {"allocated": 1536.0, "max allocated": 2304.0}
                ),
            )
    name = draw(WORDS.filter(lambda word: word[0].isalpha()))
    return f"    {(name + ' ').ljust(48, '.')}: (1.00, {number}.25)", Timer(name, number + 0.25, 1.0)


NOISE = st.sampled_from(
    [
        "",
        "  warnings.warn(",
        "n060:12:34 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
        " 50%|█████     | 10/20 [00:01<00:01,  9.99it/s]\r 55%|█████▌    | 11/20 [00:01<00:00,  9.99it/s]\r",
        "> building train, validation, and test datasets ...",
        "iteration time of the step",
        "-" * 90,
    ]
)


@given(
    st.lists(st.tuples(st.one_of(steps(), others()), st.lists(NOISE, max_size=3)), min_size=1, max_size=12),
    st.integers(1, 400),
    st.booleans(),
)
def test_written_records_are_read(
    wrote: list[tuple[tuple[str, Record], list[str]]], size: int, returns: bool
) -> None:
    end = "\r\n" if returns else "\n"
    text = "".join(line + end + "".join(one + end for one in noise) for (line, _), noise in wrote)
    assert read(text, size) == [record for (_, record), _ in wrote]


@given(st.lists(st.one_of(steps(), others()), min_size=1, max_size=4), st.data())
def test_a_cut_log_yields_nothing_that_the_whole_log_lacks(
    wrote: list[tuple[str, Record]], data: st.DataObject
) -> None:
    text = "".join(line + "\n" for line, _ in wrote).encode()
    cut = data.draw(st.integers(0, len(text)))
    found = read(text[:cut])
    whole = text[:cut].count(b"\n")
    assert found[:whole] == [record for _, record in wrote[:whole]]
    assert len(found) <= whole + 1
    for part in found[whole:]:
        _is_part_of(part, wrote[whole][1])


def _is_part_of(part: Record, record: Record) -> None:
    assert type(part) is type(record)
    if isinstance(part, Step):
        part = part._replace(is_cut=False, is_torn=False)
    for mine, its in zip(part, record, strict=True):
        if isinstance(mine, dict):
            assert isinstance(its, dict)
            assert mine.items() <= its.items()
        else:
            assert mine == its


@pytest.mark.parametrize(("text", "expected"), list(entries()))
def test_fast_path_reads_the_same_records(
    text: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_layouts", [])
    for line in text.encode().split(b"\n"):
        # NaN is not equal to itself, so compare the text.
        first, cut = repr(lines.parse(line)), repr(lines.parse(line, whole=False))
        assert (repr(lines.parse(line)), repr(lines.parse(line, whole=False))) == (first, cut)


def test_fast_path_takes_only_whole_lines_of_a_known_format(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts: list[object] = []
    monkeypatch.setattr(lines, "_layouts", layouts)
    line = "[default7]: iteration {} | lm loss: {} | grad norm: 1.0 |"
    for _ in range(2):
        (step,) = lines.parse(line.format("2/6", "9.9E+00").encode())
        assert step == Step(2, 6, {"lm loss": 9.9, "grad norm": 1.0}, "[default7]")
    assert len(layouts) == 1
    assert lines.parse(line.format("7/6", "9.9").encode()) == []
    (odd,) = lines.parse(line.format("3/6", "262,144.5").encode())
    assert odd == Step(3, 6, {"lm loss": 262144.5, "grad norm": 1.0}, "[default7]")
    (torn,) = lines.parse(line.format("3/6", "2.0").encode(), whole=False)
    assert isinstance(torn, Step)
    assert torn.is_torn
    both = f"{line.format('4/6', '2.0')}{line.format('5/6', '1.0')}"
    assert [step.iteration for step in lines.parse(both.encode()) if isinstance(step, Step)] == [4, 5]
    for _ in range(2):
        (endless,) = lines.parse(line.format("3/infinity", "2.0").encode())
        assert endless == Step(3, 0, {"lm loss": 2.0, "grad norm": 1.0}, "[default7]")
    # None of these lines has made the layout known once more.
    assert len(layouts) == 1


def test_lines_of_a_known_layout_keep_their_order_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_layouts", [])
    text = (
        " iteration 1/6 | lm loss: 5.0 |\nn1: iteration 2/6 | lm loss: 4.0 |\nafter 2 iterations\n"
        "time (ms) | optimizer: 1.0\n iteration 3/6 | lm loss: 3.0 |\n iteration 7/6 | lm loss: 2.0 |\n"
        " iteration 4/6 | lm loss: 2.0\n|\n iteration 5/6 | lm loss: 1.0 |"
    )
    for _ in range(2):
        assert read(text) == [
            Step(1, 6, {"lm loss": 5.0}),
            Step(2, 6, {"lm loss": 4.0}, "n1"),
            Timer("optimizer", 1.0),
            Step(3, 6, {"lm loss": 3.0}),
            Step(4, 6, {}),
            Step(5, 6, {"lm loss": 1.0}, is_cut=True, is_torn=True),
        ]


@given(st.lists(steps(), min_size=2, max_size=4))
def test_joined_lines_are_both_read(wrote: list[tuple[str, Step]]) -> None:
    found = read("".join(line for line, _ in wrote) + "\n")
    known = [step._replace(**WITHOUT_PREFIX) for _, step in wrote]
    assert [step._replace(**WITHOUT_PREFIX) for step in found if isinstance(step, Step)] == known


@given(st.binary(max_size=2000), st.integers(1, 500))
def test_bytes_that_are_no_log_are_no_error(data: bytes, size: int) -> None:
    read(data, size)
    read(data.replace(b"\x00", b" iteration 1/2 |").replace(b"\x01", b"time (ms) | "), size)


def test_our_own_lines_are_read() -> None:
    step = metrics.Step(30, 50, 1920, 1423.8, 7.031e-07, 64, {"lm loss": 10.17721}, grad_norm=16.666)
    (found,) = read(metrics.training_line(step) + "\n")
    assert isinstance(found, Step)
    assert (found.iteration, found.train_iterations, found.values["lm loss"]) == (30, 50, 10.17721)
    (evaluation,) = read(metrics.validation_lines("iteration 10", {"lm loss": 2.0})[1] + "\n")
    assert evaluation == Evaluation("iteration 10", {"lm loss value": 2.0, "lm loss PPL": 7.389056})


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    blocks = (b"x" * scan.BLOCK for _ in range(128))
    tracemalloc.start()
    try:
        assert list(scan.records(blocks)) == []
        assert tracemalloc.get_traced_memory()[1] < 6 * scan._LONGEST
    finally:
        tracemalloc.stop()


def test_pieces_of_a_log_are_one() -> None:
    names = ["n1.out", "n2.out", "n1.out.2", "n1.out.10", "n1.out.1", "run.2024"]
    found = scan.pieces(Path(name) for name in names)
    assert [[path.name for path in group] for group in found] == [
        ["n1.out.10", "n1.out.2", "n1.out.1", "n1.out"],
        ["n2.out"],
        ["run.2024"],
    ]


@pytest.mark.parametrize(
    "line",
    [
        "  torch_version ...............: 2.1.0",
        "  master_addr ...............: 10.0.0.1",
        "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.2.3 | max allocated: 4.0",
        "steps: 1 loss: 2.0 iter time (s): 1.2.3 samples/sec: 4.5.6",
    ],
)
def test_malformed_numbers_are_none(line: str) -> None:
    read(line + "\n")
