# SPDX-License-Identifier: GPL-3.0-or-later
"""Spans of ranks: from step traces and from timers; the bubble; Chrome's format."""

from __future__ import annotations

import json
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_log.heads import HEAD
from rdm_log.report.job import collect
from rdm_log.report.plots import plots
from rdm_log.timeline import (
    BLOCK,
    Span,
    Timeline,
    bubble,
    chrome_trace,
    of_paths,
    read_timers,
    read_traces,
    shares,
)
from tests.unit.conftest import Program
from tests.unit.log.forked import ARGUMENTS, timers


def one_forward_one_backward(stages: int, batches: int, forward: float, backward: float) -> Timeline:
    """Return the schedule 1F1B without any cost of communication."""
    orders = []
    for stage in range(stages):
        warm_up = min(batches, stages - stage - 1)
        order = [("forward", batch) for batch in range(warm_up)]
        for batch in range(batches - warm_up):
            order += [("forward", warm_up + batch), ("backward", batch)]
        order += [("backward", batch) for batch in range(batches - warm_up, batches)]
        orders.append(order)
    ends: dict[tuple[str, int, int], float] = {}
    clocks = [0.0] * stages
    spans: dict[int, list[Span]] = {stage: [] for stage in range(stages)}
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                kind, batch = order[0]
                ahead = stage - 1 if kind == "forward" else stage + 1
                needed = (kind, ahead, batch) if 0 <= ahead < stages else None
                if needed is not None and needed not in ends:
                    break
                begin = max(clocks[stage], ends[needed] if needed else 0.0)
                clocks[stage] = begin + (forward if kind == "forward" else backward)
                ends[kind, stage, batch] = clocks[stage]
                spans[stage].append(Span(kind, kind, begin, clocks[stage], 1, batch))
                order.pop(0)
    return Timeline(spans)


@given(
    stages=st.integers(2, 6),
    batches=st.integers(1, 12),
    forward=st.floats(1, 100),
    backward=st.floats(1, 100),
)
def test_the_bubble_of_one_forward_one_backward_is_the_known_one(
    stages: int, batches: int, forward: float, backward: float
) -> None:
    # Narayanan et al. 2021: (p - 1) / (m + p - 1) of the time; with fewer micro-batches than stages, too.
    timeline = one_forward_one_backward(stages, batches, forward, backward)
    assert bubble(timeline) == pytest.approx((stages - 1) / (batches + stages - 1))


def test_without_a_pipeline_there_is_no_bubble() -> None:
    spans = {0: [Span("forward", "f", 0, 1, 1)], 1: [Span("forward", "f", 0, 1, 1)]}
    assert bubble(Timeline(spans, is_pipeline=False)) is None
    assert bubble(Timeline({0: spans[0]})) is None


def test_timers_of_all_ranks_become_spans_with_their_steps(tmp_path: Path) -> None:
    log = tmp_path / "n1.out"
    log.write_text("hello\n" + timers(4, 1686726500.0) + " iteration 10/ 50 |\n" + timers(4, 1686726900.0))
    found = read_timers(log)
    assert sorted(found.spans) == [0, 1, 2, 3]
    # Only the last steps, which are the typical ones.
    assert found.spans[0][0].begin == pytest.approx(1686726900.0e6)
    assert [(span.kind, span.step, span.micro_batch) for span in found.spans[3]] == [
        *(("forward", 1, 0), ("backward", 1, 0), ("forward", 1, 1), ("backward", 1, 1), ("optimiser", 1, -1)),
        *(("forward", 2, 0), ("backward", 2, 0), ("forward", 2, 1), ("backward", 2, 1), ("optimiser", 2, -1)),
    ]
    span = found.spans[3][0]
    assert span.end - span.begin == pytest.approx(1e5)


STEP = " iteration 10/ 50 | elapsed time per iteration (ms): 3000.0 | lm loss: 9.0E+00 |\n"


@pytest.mark.parametrize(
    "head",
    [
        ARGUMENTS.format(tensor=2, stages=2, world=8),
        "NODE_RANK: 0\nNNODES: 2\nWORLD_SIZE: 8\nTENSOR_MP_SIZE: 2\nPIPELINE_MP_SIZE: 2\n",
    ],
    ids=["arguments", "info"],
)
def test_timers_of_a_pipeline_have_stages_where_the_log_has_its_layout(tmp_path: Path, head: str) -> None:
    log = tmp_path / "n1.out"
    log.write_text(head + STEP + timers(8, 100.0))
    found = of_paths([log])
    # Ranks count tensor first, then data, then pipeline.
    assert found.stages == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1}
    assert bubble(found) is not None
    page = collect(log).timeline
    assert page is not None
    assert page["is_pipeline"]
    assert sorted(page["spans"]) == ["0", "4"]


@pytest.mark.parametrize(
    "head",
    [
        "",
        ARGUMENTS.format(tensor=2, stages=1, world=8),
        # Another node's log has the other half.
        ARGUMENTS.format(tensor=1, stages=2, world=16),
    ],
    ids=["unknown", "no pipeline", "half of the ranks"],
)
def test_no_bubble_is_reported_for_timers_that_may_not_be_of_a_whole_pipeline(
    tmp_path: Path, head: str
) -> None:
    log = tmp_path / "n1.out"
    log.write_text(head + STEP + timers(8, 100.0))
    found = of_paths([log])
    assert len(found.spans) == 8
    assert bubble(found) is None
    page = collect(log).timeline
    assert page is not None
    assert not page["is_pipeline"]
    assert len(page["spans"]) == 8


def test_the_layout_is_that_of_the_last_run(tmp_path: Path) -> None:
    """Also if a job resumes with another layout, far behind the head of its log."""
    log = tmp_path / "n1.out"
    before = ARGUMENTS.format(tensor=2, stages=2, world=8) + STEP + timers(8, 100.0) + "x\n" * HEAD
    after = STEP.replace("10/", "20/") + timers(8, 200.0)
    for tensor, stages, each in ((1, 4, 2), (2, 1, 0)):
        log.write_text(before + ARGUMENTS.format(tensor=tensor, stages=stages, world=8) + after)
        found = of_paths([log])
        page = collect(log).timeline
        assert page is not None
        assert found.stages == ({rank: rank // each for rank in range(8)} if each else {})
        assert {str(rank): stage for rank, stage in found.stages.items()} == page["stages"]
        assert found.is_pipeline == page["is_pipeline"] == bool(each)
        assert (bubble(found) is None) == (not each)


@pytest.mark.parametrize("other", ["n1.out.1", "n0.out"], ids=["rotated", "another node"])
def test_the_layout_may_be_logged_in_an_older_piece_or_on_another_node(tmp_path: Path, other: str) -> None:
    (tmp_path / other).write_text(
        ARGUMENTS.format(tensor=2, stages=2, world=8)
        + "[after megatron is initialized] datetime: 2023-06-14 16:08:12 \n"
    )
    log = tmp_path / "n1.out"
    log.write_text(STEP + timers(8, 100.0))
    found = of_paths([log] if other == "n1.out.1" else [tmp_path / other, log])
    page = collect(tmp_path).timeline
    assert page is not None
    assert found.is_pipeline
    assert page["is_pipeline"]
    assert found.stages == {rank: rank // 4 for rank in range(8)}


def test_timers_that_are_being_written_are_not_the_last_ones(tmp_path: Path) -> None:
    log = tmp_path / "n1.out"
    log.write_text(timers(4, 100.0) + timers(4, 200.0)[:150])
    assert read_timers(log).spans[0][0].begin == pytest.approx(100.0e6)
    log.write_text("times across ranks (ms):\n  forward-compute:\n     rank  0: 1.00\n")
    assert read_timers(log).spans == {}
    log.write_text("")
    assert read_timers(log).spans == {}


def test_log_that_ends_within_a_line_is_read_up_to_that_line(tmp_path: Path) -> None:
    """As one does whose process was killed."""
    text = timers(2, 100.0)
    times = re.sub(r"(?m)^ \w.*\n", "", text)
    spans, milliseconds = _spans(tmp_path, text), _read(tmp_path, times).times
    for cut in range(len(text)):
        assert _spans(tmp_path, text[:cut]) <= spans
        for rank, each in _read(tmp_path, times[:cut]).times.items():
            assert each.items() <= milliseconds[rank].items()
    assert len(_spans(tmp_path, text[:-1])) == len(spans) - 1
    assert _read(tmp_path, times[:-1]).times == milliseconds


def _spans(directory: Path, text: str) -> set[tuple[object, ...]]:
    return {(rank, *span[:4]) for rank, spans in _read(directory, text).spans.items() for span in spans}


def _read(directory: Path, text: str) -> Timeline:
    log = directory / "n1.out"
    log.write_text(text)
    return read_timers(log)


@pytest.mark.parametrize("tag", ["n1: ", "[default7]:", " 3: ", "[1,7]<stdout>:"])
def test_prefixes_of_a_launcher_do_not_hide_timers(tmp_path: Path, tag: str) -> None:
    others = "n2:     rank  0: 1.00\n    rank 99: 1.00\n"
    lines = timers(4, 100.0).splitlines(keepends=True)
    log = tmp_path / "n1.out"
    log.write_text("hello\n" + "".join(f"{tag}{line}{others}" for line in lines))
    plain = tmp_path / "bare.out"
    plain.write_text(timers(4, 100.0))
    assert read_timers(log).spans == read_timers(plain).spans
    assert sorted(read_timers(log).spans) == [0, 1, 2, 3]


@pytest.mark.parametrize("where", ["before", "after", "both"])
def test_timers_are_found_in_a_log_of_any_size_in_bounded_memory(tmp_path: Path, where: str) -> None:
    log = tmp_path / "n1.out"
    other = b"n1: a line of something else\n" * 1000
    with log.open("wb") as file:
        for _ in range(2000 if where != "after" else 0):
            file.write(other)
        file.write(timers(4, 100.0).encode())
        for _ in range(2000 if where != "before" else 0):
            file.write(other)
    size = log.stat().st_size
    assert size > 50e6
    tracemalloc.start()
    try:
        assert sorted(read_timers(log).spans) == [0, 1, 2, 3]
        assert tracemalloc.get_traced_memory()[1] < 8 * BLOCK < size / 10
    finally:
        tracemalloc.stop()


def test_a_heading_between_two_blocks_is_found(tmp_path: Path) -> None:
    log = tmp_path / "n1.out"
    text = timers(2, 100.0).encode()
    for behind in (0, 1, 10, 22, 23, 24, 100):
        # The first block to be read begins at various bytes of the heading.
        log.write_bytes(b"x\n" + text + b"\n" * (BLOCK - len(text) + behind))
        assert sorted(read_timers(log).spans) == [0, 1], behind


def test_a_log_that_is_cut_while_it_is_read_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rotation cuts it like this; mapping it into memory would kill the process with SIGBUS."""
    log = tmp_path / "n1.out"
    log.write_bytes(timers(2, 100.0).encode() + b"\n" * 3 * BLOCK)
    reads = []

    def pread(
        file: int, size: int, position: int, real: Callable[[int, int, int], bytes] = os.pread
    ) -> bytes:
        reads.append(position)
        if len(reads) == 2:
            os.truncate(log, 0)
        return real(file, size, position)

    monkeypatch.setattr(os, "pread", pread)
    assert read_timers(log).spans == {}
    assert len(reads) > 2


def test_times_of_all_ranks_without_their_moments_show_where_a_step_goes(tmp_path: Path) -> None:
    block = (
        "times across ranks (ms):\n  forward-backward:\n     rank  0: 99.00\n     rank  1: 98.00\n"
        "  forward-compute:\n     rank  0: {0:.2f}\n     rank  1: 21.00\n"
        "  forward-recv:\n     rank  1: 5.50\n  backward-recv:\n     rank  1: 1.50\n"
        "  optimizer:\n     rank  0: 4.25\n     rank  1: 4.00\n"
    )
    step = " iteration {0:8d}/ 50 | elapsed time per iteration (ms): 100.0 | lm loss: 2.0E+00 |\n"
    log = tmp_path / "n1.out"
    text = step.format(10) + block.format(10.0) + step.format(20) + block.format(20.0) + step.format(30)
    log.write_text(text + block.format(30.0)[:90])
    found = read_timers(log)
    assert (found.spans, found.source) == ({}, "timers")
    # Of the last complete block; timers that contain others do not count.
    assert shares(found) == {
        0: {"forward": 20.0, "optimiser": 4.25},
        1: {"forward": 21.0, "receive": 7.0, "optimiser": 4.0},
    }
    drawn = {plot["id"]: plot for plot in plots([collect(log)])}
    assert "timeline0" not in drawn
    kinds = {trace["name"]: trace["y"] for trace in drawn["shares0"]["variants"][0]["data"]}
    assert kinds == {"forward": [20, 21], "receive": [0, 7], "optimiser": [4.25, 4]}


def trace(directory: Path, rank: int, node: str = "n1") -> None:
    (directory / "trace").mkdir(parents=True, exist_ok=True)
    data = {
        "version": 1,
        "rank": rank,
        "node": node,
        "pipeline": 2,
        "pipeline_rank": rank,
        "clock_uncertainty_us": 10.0 * rank,
        "spans": [
            ["forward", "ForwardPass", 20, 0, 1000.0 + rank, 50.0],
            ["collective", "send", 20, -1, 1010.0, 5.0],
        ],
    }
    (directory / "trace" / f"rank-{rank:05d}.json").write_text(json.dumps(data))


def test_traces_of_nodes_that_share_no_directory_are_one(tmp_path: Path) -> None:
    trace(tmp_path / "a", 0)
    trace(tmp_path / "b", 1, "n2")
    (tmp_path / "b" / "trace" / "rank-00002.json").write_text('{"rank": 2, "spa')
    found = of_paths([tmp_path / "a", tmp_path / "b"])
    assert sorted(found.spans) == [0, 1]
    assert (found.stages, found.nodes, found.uncertainty) == ({0: 0, 1: 1}, {0: "n1", 1: "n2"}, 10.0)
    assert sorted(read_traces(sorted((tmp_path / "b" / "trace").iterdir()), "n2").spans) == [1]


def test_chromes_trace_format(tmp_path: Path, program: Program) -> None:
    trace(tmp_path, 0)
    trace(tmp_path, 1)
    code, out, _ = program("log", "trace", tmp_path, "-o", tmp_path / "trace.json")
    assert code == 0
    assert "4 spans of 2 ranks, step 20." in out
    data = json.loads((tmp_path / "trace.json").read_text())
    events = [event for event in data["traceEvents"] if event["ph"] == "X"]
    assert events[0] == {
        **{"name": "ForwardPass", "cat": "forward", "ph": "X", "ts": 0.0, "dur": 50.0, "pid": 0, "tid": 0},
        "args": {"step": 20, "micro_batch": 0},
    }
    # A span within another gets a track of its own.
    assert (events[1]["tid"], events[1]["args"]) == (1, {"step": 20})
    names = {
        event["pid"]: event["args"]["name"]
        for event in data["traceEvents"]
        if event["name"] == "process_name"
    }
    assert names == {0: "rank 0, stage 0 on n1", 1: "rank 1, stage 1 on n1"}
    assert chrome_trace(Timeline())["traceEvents"] == []


def test_directory_without_a_trace_is_refused(tmp_path: Path, program: Program) -> None:
    code, _, err = program("log", "trace", tmp_path, "-o", tmp_path / "trace.json")
    assert code == 3
    assert "set logging.trace_steps, such as 20-22" in err
