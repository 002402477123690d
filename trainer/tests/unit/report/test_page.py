# SPDX-License-Identifier: GPL-3.0-or-later
"""The page in a real browser: no script error, nothing fetched, every plot with its data."""

from __future__ import annotations

import datetime
import hashlib
import importlib.resources
import json
import os
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from rdm_log.report.devices import MEASURES, history
from rdm_log.report.gantt import _KIND_COLOURS as KIND_COLOURS
from rdm_log.report.job import collect
from rdm_log.report.page import page
from rdm_log.report.plots import OF_ALL_JOBS, OF_EACH_JOB, plots
from rdm_log.report.write import write
from rdm_log.summary import NothingToRead
from rdm_log.timeline import KINDS
from tests.unit.conftest import Program
from tests.unit.log.forked import ARGUMENTS, timers
from tests.unit.report.conftest import (
    LAST,
    RESTARTED_AT,
    SLOW,
    training_line,
    write_full_job,
    write_job,
    write_network,
    write_stream,
    write_trace,
)

CORPUS = Path(__file__).parent.parent / "log" / "corpus"
PLOTLY = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
"""SHA-256 of plotly-cartesian.min.js in the npm package plotly.js-cartesian-dist-min 4.1.1."""


def test_plotly_has_its_pinned_version() -> None:
    library = importlib.resources.files("rdm_log.report") / "assets" / "plotly-cartesian.min.js"
    assert hashlib.sha256(library.read_bytes()).hexdigest() == PLOTLY


def test_page_of_a_job_on_a_desktop(tmp_path: Path, opened: Any) -> None:
    job = write_job(tmp_path / "gpt-1")
    write_trace(job)
    write_network(job)
    write([job], tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    assert shown.wrong == []
    assert [url for url in shown.requested if not url.startswith(("file:", "data:", "blob:"))] == []
    plots = shown.plots()
    assert set(plots) == {
        *("loss", "steptime", "speed", "mfu", "lr", "gradnorm", "lossscale", "memory"),
        *("gpus0", "timeline0", "shares0", "fabric0", "bandwidth0"),
    }
    assert min(plots.values()) > 0, plots
    assert plots["loss"] == 300 + 2, "steps, and validation losses"
    assert plots["memory"] == 8 * 2
    assert plots["gpus0"] == 8 * 60
    text = shown.page.inner_text("main")
    for words in (
        f"Step {SLOW} took 9.0 s, 6.4 times the median.",
        "Restarted from checkpoint 200 at 2023-06-14 18:30:00; 40 steps were taken again.",
        "Checkpoint at step 200.",
        f"{LAST + 1}\nof 400 (65 %)",
        # Of the step before: the last line is incomplete.
        "Tokens/s per GPU\n4,000",
        "MFU\n48.0 %\n61.0 TFLOP/s per GPU",
        "n001:0 was the least busy: 40 % on average, others 95 %.",
        "The bubble is 33 %",
        "The nodes' clocks agree to 0.04 ms.",
    ):
        assert words in text, (words, text)


@pytest.mark.parametrize("knows_peak", [True, False], ids=["mfu", "tflops"])
def test_every_plot_is_drawn(tmp_path: Path, opened: Any, knows_peak: bool) -> None:
    """A new plot fails here until some job has it."""
    work = "mfu" if knows_peak else "tflops"
    write([write_full_job(tmp_path / "gpt-1", knows_peak=knows_peak)], tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    expected = {*OF_ALL_JOBS, *(f"{name}0" for name in OF_EACH_JOB)} - {"work"} | {work}
    plots = shown.plots()
    assert (set(plots), min(plots.values()) > 0) == (expected, True), plots
    marks = shown.variants()
    assert set(marks) == expected
    assert all(count > 0 for drawn in marks.values() for count in drawn.values()), marks
    assert list(marks["gpus0"]) == [title for title, _, _ in MEASURES.values()]
    assert list(marks["timeline0"]) == ["step 20", "step 21"]
    # Collectives are within the other spans.
    kinds = set(KINDS) - {"collective"}
    assert set(KIND_COLOURS) == kinds
    for plot, names in (("timeline0", {*kinds, "bubble"}), ("shares0", kinds)):
        traces = shown.traces(plot)
        assert {one["name"] for one in traces} == names
        assert all(any(value is not None for value in one["y"]) for one in traces), plot
    losses = {one["name"]: one for one in shown.traces("loss")}
    assert set(losses) == {"lm loss", "validation"}
    assert (losses["validation"]["x"], losses["validation"]["y"]) == ([100, 200], [2.9, 2.9])
    assert shown.wrong == []


def test_events_are_listed_and_marked_on_the_curves(tmp_path: Path, opened: Any) -> None:
    job = write_job(tmp_path / "gpt-1")
    with (job / "n000.out").open("a") as file:
        file.write("  successfully saved checkpoint at iteration     250 to /checkpoints\n")
    with (job / "n003.out").open("a") as file:
        file.write("\n" + training_line(LAST + 2, random.Random(1), loss="NAN"))
    failures = [
        {"node": "n002", "rank": 5, "reason": "The process ended with exit code 1."},
        {"node": "n001", "rank": None, "reason": "The node was lost."},
    ]
    (job / "state.json").write_text(json.dumps({"state": "failed", "failures": failures, "restarts": 2}))
    write([job], tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    events = shown.page.eval_on_selector_all(
        "header .events li", "(all) => all.map((one) => [one.className, one.innerText])"
    )
    assert events[:5] == [
        ["bad", "n002, rank 5: The process ended with exit code 1."],
        ["bad", "n001: The node was lost."],
        [
            "warn",
            "Restarted from checkpoint 200 at 2023-06-14 18:30:00; 40 steps were taken again.",
        ],
        ["warn", "Restarted once without a line of a step between."],
        ["good", "2 checkpoints, the last at step 250."],
    ]
    for plot in ("loss", "steptime", "gradnorm"):
        notes = shown.page.eval_on_selector_all(
            f"#{plot} .annotation-text", "(all) => all.map((one) => one.textContent)"
        )
        assert notes == ["restart", "NaN"], plot
        positions = shown.page.evaluate(
            f"document.querySelector('#{plot} .drawing')._fullLayout.shapes.map((one) => one.x0)"
        )
        # The restart, the two checkpoints and the NaN loss, each at its step.
        assert sorted(positions) == [200, RESTARTED_AT, 250, LAST + 2], plot
        assert shown.page.locator(f"#{plot} .shapelayer path").count() == 4, plot
    assert shown.wrong == []


def test_the_timers_of_all_ranks_in_a_log_of_megatron_s_are_drawn(tmp_path: Path, opened: Any) -> None:
    rng = random.Random(1)
    steps = "".join(training_line(step, rng) for step in range(1, 21))
    log = tmp_path / "10932251.out"
    log.write_text(ARGUMENTS.format(tensor=2, stages=2, world=8) + steps + timers(8, 1686726500.0))
    write([log], tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    # One rank of each stage.
    assert shown.page.locator("#timeline0 .yaxislayer-above text").all_text_contents() == [
        *("stage 0, rank 0", "stage 1, rank 4")
    ]
    drawn = {one["name"]: one for one in shown.traces("timeline0")}
    assert set(drawn) == {"forward", "backward", "optimiser", "bubble"}
    # Two micro-batches of each of the two ranks, each of 100 ms, the second stage's 40 ms later.
    ends = [(0, 100), (700, 800), (40, 140), (740, 840)]
    assert drawn["forward"]["x"] == [one for pair in ends for one in (*pair, None)]
    assert drawn["forward"]["y"] == [0, 0, None, 0, 0, None, 1, 1, None, 1, 1, None]
    marks = shown.variants()
    assert marks["timeline0"]["step 1"] > 0
    assert marks["timeline0"]["step 2"] > 0
    text = shown.page.inner_text("main")
    assert "The bubble is 58 % of the time from the first forward to the last backward pass." in text
    assert {one["name"] for one in shown.traces("shares0")} == {"forward", "backward", "optimiser"}
    assert [len(one["x"]) for one in shown.traces("shares0")] == [8] * 3
    assert shown.wrong == []


def test_the_scale_the_smoothing_and_the_measure_can_be_changed(tmp_path: Path, opened: Any) -> None:
    write([write_job(tmp_path / "gpt-1")], tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    page = shown.page

    def of(plot: str, what: str) -> Any:
        return page.evaluate(f"document.querySelector('#{plot} .drawing').{what}")

    assert of("loss", "_fullLayout.yaxis.type") == "linear"
    page.click("#loss button")
    assert of("loss", "_fullLayout.yaxis.type") == "log"
    before = of("loss", "data.length")
    page.locator("#loss input").fill("0.9")
    assert of("loss", "data.length") == before + 1
    raw, smooth = of("loss", "data[0].y"), of("loss", "data[1].y")
    # It begins with the first value, and lags behind the falling one.
    assert smooth[0] == raw[0]
    assert smooth[100] > raw[100]
    page.click("#gpus0 button:has-text('Temperature')")
    assert 60 <= of("gpus0", "data[0].z[0][0]") <= 62
    assert shown.wrong == []


def test_on_a_phone_nothing_is_wider_than_the_screen(tmp_path: Path, opened: Any) -> None:
    """Neither with every plot of two jobs, nor with open tables, which are scrolled."""
    job = write_full_job(tmp_path / "a-job-with-a-name-that-is-as-long-as-names-of-jobs-can-be-63")
    other = write_full_job(tmp_path / "other", knows_peak=False)
    (other / "resolved.yaml").write_text(json.dumps({"data": {"prefix": "/a/long/path" * 20}}))
    write([job, other], tmp_path / "page.html")
    shown = opened(tmp_path / "page.html", 360, phone=True)
    shown.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert shown.page.evaluate("document.documentElement.scrollWidth") == 360
    assert shown.too_wide() == []
    assert {f"timeline{number}" for number in range(2)} <= set(shown.plots())
    assert shown.wrong == []


def test_page_can_be_printed(tmp_path: Path, opened: Any) -> None:
    jobs = [write_full_job(tmp_path / name) for name in ("gpt-1", "gpt-2")]
    (jobs[1] / "resolved.yaml").write_text(json.dumps({"data": {"prefix": "/a/long/path" * 20}}))
    write(jobs, tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    pdf = shown.page.pdf(format="A4", margin=dict.fromkeys(("left", "right", "top", "bottom"), "12mm"))
    assert pdf[:5] == b"%PDF-"
    # A4 in points. Chromium shrinks or cuts what does not fit.
    sizes = {tuple(map(float, box)) for box in re.findall(rb"/MediaBox ?\[0 0 ([\d.]+) ([\d.]+)\]", pdf)}
    assert sizes
    assert all(abs(x - 595) < 1.5 and abs(y - 842) < 1.5 for x, y in sizes), sizes
    # The paper as the browser lays it out: 210 mm and 297 mm less the margins, at 96 pixels per inch.
    width, height = 703, 1032
    shown.page.emulate_media(media="print")
    shown.page.set_viewport_size({"width": width, "height": height})
    shown.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    shown.page.evaluate(
        """(width) => new Promise((done) => {
             const drawings = document.querySelectorAll(".drawing .main-svg");
             const look = () => [...drawings].every((one) => one.clientWidth <= width)
               ? done() : requestAnimationFrame(look);
             look();})""",
        width,
    )
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    plots = shown.page.evaluate(
        """() => [...document.querySelectorAll("figure.plot")].map((one) => {
             const drawing = one.querySelector(".drawing .main-svg").getBoundingClientRect();
             const box = one.getBoundingClientRect();
             return [one.id, box.left, drawing.left, drawing.right, box.right, box.height,
                     getComputedStyle(one).breakInside]})"""
    )
    assert len(plots) == len(shown.plots()) > 8
    for name, left, begin, end, right, high, breaks in plots:
        assert 0 <= left <= begin < end <= right <= width, name
        # It is not split between two sheets.
        assert (high < height, breaks) == (True, "avoid"), (name, high)
    assert not shown.page.is_visible(".controls")
    # Paper does not scroll: open tables are printed whole, the others are left out.
    assert shown.page.locator("details[open] table").count() == 2
    cut = shown.page.eval_on_selector_all(
        "details .table",
        "(all) => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.innerText)",
    )
    assert cut == []
    assert shown.page.locator("details:not([open])").first.is_hidden()
    assert shown.too_wide() == []
    assert shown.wrong == []


def test_two_jobs_are_compared(tmp_path: Path, opened: Any, program: Program) -> None:
    for name, layers in (("wide", 12), ("deep", 24)):
        job = write_job(tmp_path / name)
        settings = (
            f"model: {{layers: {layers}, hidden_size: 64}}\nlauncher: {{env: {{KEY: {name}-secret}}}}\n"
        )
        (job / "resolved.yaml").write_text(settings)
    code, out, _ = program("report", tmp_path / "wide", tmp_path / "deep", "-o", tmp_path / "both.html")
    assert code == 0
    assert f"Written to {tmp_path / 'both.html'}." in out
    shown = opened(tmp_path / "both.html")
    assert shown.wrong == []
    assert shown.page.inner_text("table:has-text('model.layers') >> nth=0").split() == [
        *("wide", "deep", "model.layers", "12", "24")
    ]
    assert shown.plots()["loss"] == 2 * (300 + 2), "steps, and validation losses"
    # The jobs' environment is private.
    assert "secret" not in (tmp_path / "both.html").read_text()


def test_the_text_of_a_log_cannot_become_a_script(tmp_path: Path, opened: Any) -> None:
    evil = "</script><script>document.title='taken'</script><img src=x onerror=document.title='taken'>"
    job = write_job(tmp_path / "gpt-1")
    (job / "n000.err").write_text(f"RuntimeError: CUDA error: {evil}\n")
    (job / "resolved.yaml").write_text(json.dumps({"name": evil}))
    (job / "n000.gpu").write_text(f"[0] {evil} | 60'C, 50 % | 1 / 2 MB |\n")
    (job / "n000.gpu").rename(job / "<b onmouseover=x>.gpu")
    write([job], tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    assert shown.page.title() == "gpt-1"
    assert "CUDA error: </script>" in shown.page.inner_text("header")


def test_figures_are_readable_and_no_cell_is_empty(tmp_path: Path, opened: Any) -> None:
    line = (
        " iteration {:8d}/    5000 | elapsed time per iteration (ms): 822.0 | global batch size:   256 |"
        " lm loss: 3.0 | consumed samples: {:d} | consumed tokens: {:d} |{}\n"
    )
    memory = "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 2048.0\n"
    steps = [line.format(n, 256 * n, 256 * 2048 * n, "") for n in range(1, 41)]
    log = tmp_path / "n1.out"
    log.write_text("".join([*steps, memory]))
    write([log], tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    # 256 samples of 2048 tokens in 0.822 s.
    assert "Tokens/s\n637,820" in shown.page.inner_text(".tiles")
    assert "A run's first line, with what it builds, is left out." in shown.page.inner_text("#steptime")
    # A single rank's bar is narrow, and the last of an odd number of plots has the whole width.
    bars = shown.page.eval_on_selector_all(
        "#memory .point path", "(all) => all.map((one) => one.getBoundingClientRect().width)"
    )
    assert sum(bars) < 0.25 * shown.page.locator("#memory .drawing").bounding_box()["width"]
    boxes = [one.bounding_box() for one in shown.page.locator("figure.plot").all()]
    wide = max(box["width"] for box in boxes)
    rows = [sum(box["width"] for box in boxes if box["y"] == y) for y in {box["y"] for box in boxes}]
    assert min(rows) > 0.95 * wide
    assert shown.wrong == []


def test_figure_that_is_no_longer_logged_shows_its_last_step(tmp_path: Path) -> None:
    old = " iteration {:8d}/ 50 | elapsed time per iteration (ms): 700.0 | {}: 346.3/340.8 | lm loss: 9.0 |\n"
    new = " iteration {:8d}/ 50 | elapsed time per iteration (ms): 700.0 | {}: 615.5 (avg 610.1) |\n"
    named = "throughput per GPU (TFLOP/s/GPU)"
    for last, figure in (
        (new.format(5, "compute per GPU (TFLOP/s/GPU)"), "<dd>615.5<small></small>"),
        (new.format(5, "something else"), "<dd>346.3<small>reported until step 4</small>"),
    ):
        (tmp_path / "run.log").write_text("".join(old.format(n, named) for n in range(1, 5)) + last)
        shown = page([collect(tmp_path / "run.log")])
        assert f"<dt>TFLOP/s per GPU</dt>{figure}" in shown
        assert "<dd>9.0000<small>at step 4, from 9, lowest 9 at 1</small>" in shown


def test_the_documents_sample_and_a_single_log(tmp_path: Path, opened: Any) -> None:
    write([CORPUS / "sample.txt"], tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    assert shown.wrong == []
    assert shown.plots()["loss"] == 3
    assert "8.9176" in shown.page.inner_text(".tiles")


def test_the_address_plan_with_its_rails_and_the_bandwidth_between_nodes_are_shown(tmp_path: Path) -> None:
    job = write_job(tmp_path / "gpt-1")
    rail = {"my_ip": "192.169.17.100", "parent": "ib1.7", "network": "rdm-1", "subnet": "192.169.17.0/24"}
    nodes = {
        "n000": {"rank": 0, "address": "10.0.0.1", "my_ip": "192.169.16.100", "rails": [rail]},
        "n001": {"rank": 1, "address": "10.0.0.2", "my_ip": "192.169.16.101"},
    }
    known = {
        "fabric": None,
        "plan": {"subnet": "192.169.16.0/24", "gateway": "192.169.16.1", "nodes": nodes},
        "rdma": {
            "nodes": ["n000", "n001", "n002"],
            "bandwidth_gbit": {
                "n000": {"n001": 96.6, "n002": 96.4},
                "n001": {"n000": 11.2, "n002": 96.5},
            },
        },
    }
    (job / "network.json").write_text(json.dumps(known))
    shown = collect(job)
    text = page([shown])
    assert "Address plan of the cluster: 192.169.16.0/24, gateway 192.169.16.1" in text
    for cells in (
        ["0", "10.0.0.1", "192.169.16.100", "192.169.17.100 on ib1.7 (rdm-1, 192.169.17.0/24)"],
        ["1", "10.0.0.2", "192.169.16.101", ""],
    ):
        assert "".join(f"<td>{cell}</td>" for cell in cells) in text
    drawn = {plot["id"]: plot["variants"][0]["data"][0] for plot in plots([shown])}
    assert drawn["bandwidth0"]["z"] == [[None, 96.6, 96.4], [11.2, None, 96.5], [None] * 3]
    assert "<p>n001 to n000: 11.2 Gbit/s, others 96.45.</p>" in text
    assert "fabric0" not in drawn
    (job / "network.json").unlink()
    assert "Address plan" not in page([collect(job)])


def test_separate_reports_of_nodes_are_one_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = write_job(tmp_path / "gpt-1")
    write_trace(whole)
    (whole / "n001.err").write_text("OSError: [Errno 28] No space left on device\n")
    (whole / "n002.gpu").write_text("[0] NVIDIA A10 | 40'C, 0 % | 0 / 22731 MB |\n")
    (whole / "state.json").write_text(json.dumps({"state": "running"}))
    parts = tmp_path / "parts" / "gpt-1"
    parts.mkdir(parents=True)
    (parts / "network.json").write_text(
        json.dumps({"plan": {"nodes": {"n000": {"my_ip": "192.169.16.100"}}}})
    )
    for number in range(4):
        part = collect(whole, node=f"n{number:03d}").to_json()
        (parts / f"{number}.report.json").write_text(json.dumps(part, allow_nan=False))
    one, other = collect(whole), collect(parts)
    assert other.devices == one.devices
    assert [run["memory_mib"] for run in other.runs][-1] == [run["memory_mib"] for run in one.runs][-1]
    assert [run["series"] for run in other.runs] == [run["series"] for run in one.runs]
    assert other.verdict() == one.verdict()
    assert [(sign.kind, sign.node) for sign in one.verdict().culprits] == [
        ("error", "n001"),
        ("idle", "n002"),
    ]
    assert other.plan == {"nodes": {"n000": {"my_ip": "192.169.16.100"}}}


def test_directory_that_is_no_training_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("hello\n")
    with pytest.raises(NothingToRead, match="has no line"):
        write([tmp_path / "x.log"], tmp_path / "page.html")
    with pytest.raises(NothingToRead, match="There is no file"):
        write([tmp_path / "nowhere"], tmp_path / "page.html")
    job = write_job(tmp_path / "gpt-1")
    with pytest.raises(NothingToRead, match=r"page\.html cannot be written"):
        write([job], tmp_path / "missing" / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_the_machine_readable_records_come_first_and_their_times_are_the_axis(
    tmp_path: Path, opened: Any
) -> None:
    job = write_job(tmp_path / "gpt-1", nodes=2)
    begin = datetime.datetime(2026, 11, 21, 8).timestamp()
    write_stream(job / "n000.gpu.jsonl", [begin + 60 * minute for minute in range(60)])
    write_stream(job / "n001.gpu.jsonl", [begin + 60 * minute for minute in range(30)])
    found = collect(job)
    assert found.devices["n000"]["times"] == ["2026-11-21 08:00:00", "2026-11-21 08:59:00"]
    assert {"power", "clock", "temperature"} <= set(found.devices["n000"]["gpus"]["1"])
    write([job], tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    shown.page.click("#gpus0 button:has-text('Power')")
    data = shown.page.evaluate("document.querySelector('#gpus0 .drawing').data[0]")
    assert (data["x"][0], data["x"][-1]) == ("2026-11-21 08:00:00", "2026-11-21 08:59:00")
    rows = dict(zip(data["y"], data["z"], strict=True))
    assert rows["n000:0"] == list(range(60))
    # The second node reported only the first half hour.
    assert rows["n001:1"][:29] == list(range(29))
    assert set(rows["n001:1"][31:]) == {None}
    shown.page.click("#gpus0 button:has-text('Clock')")
    assert shown.wrong == []


@pytest.mark.parametrize("gap_s", [0, 50_000])
def test_thinned_records_keep_their_times(tmp_path: Path, gap_s: int) -> None:
    """The older half keeps a quarter of its records; they have no gap unless nothing was measured."""
    times = [20.0 * number for number in range(500)] + [10_000 + 5.0 * number for number in range(2000)]
    times = [at + gap_s * (at >= 12_000) for at in times]
    file = tmp_path / "n1.gpu.jsonl"
    write_stream(file, times)
    found = history(file, 100)
    power = found["gpus"]["0"]["power"]
    assert found["sampled"]
    assert len(power) == 100
    last = times[-1]
    for column, value in enumerate(power):
        at = last * (column + 0.5) / 100
        is_missing = gap_s and 12_000 + last / 50 < at < 12_000 + gap_s - last / 50
        if is_missing:
            assert value is None
        elif value is not None:
            assert abs(times[round(value)] - at) < last / 25
    missing = power.count(None) * last / 100
    assert abs(missing - gap_s) <= last / 25


def test_long_lines_are_thinned_before_they_are_parsed(tmp_path: Path) -> None:
    file = tmp_path / "n1.gpu"
    file.write_text(
        "".join(
            f"[{gpu}] NVIDIA A10 | {60 + gpu}'C, {100 * moment // 5000:3d} % | 20000 / 22731 MB |\n"
            for moment in range(5000)
            for gpu in range(8)
        )
    )
    found = history(file, 100)
    assert found["sampled"]
    assert list(found["gpus"]) == [str(gpu) for gpu in range(8)]
    assert found["gpus"]["7"]["temperature"] == [67.0] * 100
    for column, value in enumerate(found["gpus"]["3"]["utilisation"]):
        assert abs(value - column) <= 2


def test_verdict_of_the_agents_is_shown(tmp_path: Path, program: Program) -> None:
    job = write_job(tmp_path / "gpt-1")
    slow = "Rank 3 on n001 is slow."
    faulty = {"kind": "slow", "node": "n001", "rank": 3}
    verdict = {"verdict": "suspect", "reason": slow, "evidence": [slow], "culprits": [faulty], "since": 1e9}
    (job / "state.json").write_text(json.dumps({"state": "running", "verdict": verdict}))
    shown = collect(job)
    assert shown.verdict().to_json() == {**verdict, "exit_code": 4}
    # The same if each node wrote its own report.
    parts = tmp_path / "parts" / "gpt-1"
    parts.mkdir(parents=True)
    (parts / "n000.report.json").write_text(json.dumps(collect(job, node="n000").to_json()))
    assert collect(parts).verdict().to_json() == shown.verdict().to_json()
    printed = json.loads(program("log", "verdict", job, "--json")[1])
    assert (printed["culprits"], printed["since"]) == ([faulty], 1e9)
    # Its writer is gone.
    long_ago = time.time() - 3600
    os.utime(job / "state.json", (long_ago, long_ago))
    assert collect(job).verdict().word == "healthy"
    verdict = {"verdict": "failed", "reason": "n001: exit code 1.", "evidence": ["n001: exit code 1."]}
    (job / "state.json").write_text(json.dumps({"state": "failed", "verdict": verdict}))
    (job / "n001.err").write_text("RuntimeError: CUDA error: an illegal memory access was encountered\n")
    found = collect(job).verdict()
    assert found.evidence[0] == "n001: exit code 1."
    assert "CUDA" in " ".join(found.evidence[1:])


def test_a_log_that_ended_long_ago_is_not_late(tmp_path: Path) -> None:
    job = write_job(tmp_path / "gpt-1")
    long_ago = datetime.datetime(2023, 6, 14, 18, 30).timestamp()
    for file in job.iterdir():
        os.utime(file, (long_ago, long_ago))
    found = collect(job).verdict()
    assert found.word == "suspect"
    assert found.reason == (
        f"Its logs end at iteration {LAST + 1}, were written last at 2023-06-14 18:30, and do not say why."
    )
