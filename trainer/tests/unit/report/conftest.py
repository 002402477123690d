# SPDX-License-Identifier: GPL-3.0-or-later
"""Generated logs of jobs, and a real browser for the pages made from them."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

STEPS = 400
SLOW = 161
RESTARTED_AT = 201
LAST = 260
_TIMEOUT_MS = 120_000
"""The timeout of anything in the browser, for a busy machine."""


def training_line(number: int, rng: random.Random, *, loss: str = "", knows_peak: bool = True) -> str:
    """Return a step's line.

    Args:
        number: The step's.
        rng: For values that differ from step to step.
        loss: Replaces the falling loss.
        knows_peak: The devices' peak is known, so there is an MFU.
    """
    milliseconds = 9000.0 if number == SLOW else 1400 + rng.gauss(0, 20)
    loss = loss or f"{2.4 + 8.5 * math.exp(-number / 60):.6E}"
    mfu = " MFU (%): 48.00 |" if knows_peak else ""
    return (
        f" iteration {number:8d}/{STEPS:8d} | consumed samples: {number * 64:12d} |"
        f" consumed tokens: {number * 65536:12d} | elapsed time per iteration (ms): {milliseconds:.1f} |"
        f" learning rate: {1.5e-4 * min(1, number / 50):.3E} | global batch size:    64 |"
        f" lm loss: {loss} | loss scale: {65536.0 if number % 50 else 32768.0} | grad norm: 1.500 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |"
        f" tokens per gpu per second (tgs): {4000.0:.3f} | TFLOPs: 61.00 |{mfu}\n"
    )


def validation_line(number: int) -> str:
    return f" validation loss at iteration {number} | lm loss value: 2.9E+00 | lm loss PPL: 1.8E+01 | \n"


def write_job(directory: Path, nodes: int = 4, *, knows_peak: bool = True) -> Path:
    """Write a job's logs in FASOP's layout: restarted once, its second node's first GPU half idle."""
    rng = random.Random(1)
    directory.mkdir(parents=True)
    names = [f"n{number:03d}" for number in range(nodes)]
    for number, name in enumerate(names):
        lines = []
        if number == 0:
            # Rank 0 logs starts, the last rank logs steps.
            lines = [
                "[after megatron is initialized] datetime: 2023-06-14 16:02:12 \n",
                "  successfully saved checkpoint at iteration     200 to /checkpoints\n",
                "[after megatron is initialized] datetime: 2023-06-14 18:30:00 \n",
                "  successfully loaded checkpoint from /checkpoints at iteration 200\n",
            ]
        lines += [
            f"[Rank {2 * number + rank}] (after 20 iterations) memory (MB) | allocated: 1570.5 |"
            f" max allocated: {3035.0 + number} | reserved: 4020.0 | max reserved: {4020.0 + number}\n"
            for rank in range(2)
        ]
        if number == nodes - 1:
            for step in (*range(1, 241), *range(RESTARTED_AT, LAST + 1)):
                lines.append(training_line(step, rng, knows_peak=knows_peak))
                if step % 100 == 0:
                    lines.append(validation_line(step))
            lines.append(training_line(LAST + 1, rng)[:150])  # it is being written
        (directory / f"{name}.out").write_text("".join(lines))
        (directory / f"{name}.err").write_text("  warnings.warn(\n")
        records = []
        for moment in range(60):
            for gpu in range(2):
                busy = 40 if (number, gpu) == (1, 0) else 95
                records.append(
                    f"[{gpu}] NVIDIA A10 | {60 + moment % 3}'C, {busy:3d} % | 20000 / 22731 MB |\n"
                )
        (directory / f"{name}.gpu").write_text("".join(records))
    return directory


def write_trace(directory: Path, *, stages: int = 2) -> None:
    """Write step traces of a pipeline whose every pass takes 10 ms, one micro-batch after the other.

    Messages take 1 ms and overlap with the passes; the gradients are summed right before the optimiser.
    """
    (directory / "trace").mkdir(parents=True)
    for stage in range(stages):
        spans: list[list[Any]] = []
        is_first, is_last = stage == 0, stage == stages - 1
        for step in (20, 21):
            begin = 1e6 * step
            for batch in range(2):
                first = begin + 10_000 * (stage + batch)
                last = begin + 10_000 * (2 * stages - stage + batch)
                if is_first:
                    spans.append(["load", "LoadMicroBatch", step, batch, first - 500, 500])
                else:
                    spans.append(["receive", "RecvActivation", step, batch, first - 1000, 1000])
                spans.append(["forward", "ForwardPass", step, batch, first, 10_000])
                if not is_last:
                    spans.append(["send", "SendActivation", step, batch, first + 10_000, 1000])
                spans.append(["backward", "BackwardPass", step, batch, last, 10_000])
            end = begin + 10_000 * 2 * (stages + 2)
            spans.append(["reduce", "ReduceGrads", step, -1, end - 5000, 5000])
            spans.append(["optimiser", "OptimizerStep", step, -1, end, 5000])
            # A span of none of these kinds.
            spans.append(["other", "empty_cache", step, -1, end + 5000, 500])
        trace = {
            "version": 1,
            "rank": stage,
            "node": f"n{stage}",
            "pipeline": stages,
            "pipeline_rank": stage,
            "clock_uncertainty_us": 40.0,
            "spans": spans,
        }
        (directory / "trace" / f"rank-{stage:05d}.json").write_text(json.dumps(trace))


def write_network(directory: Path) -> None:
    """Write what `verify` measured between all nodes, and the cluster's plan."""
    names = [f"n{number:03d}" for number in range(4)]

    def between(value: float) -> dict[str, dict[str, float]]:
        return {one: {other: value for other in names if other != one} for one in names}

    plan = {name: {"rank": rank, "my_ip": f"192.169.16.{100 + rank}"} for rank, name in enumerate(names)}
    known = {
        "fabric": {"nodes": names, "rtt_us": between(9.5)},
        "rdma": {"nodes": names, "bandwidth_gbit": between(96.6)},
        "plan": {"subnet": "192.169.16.0/24", "nodes": plan},
    }
    (directory / "network.json").write_text(json.dumps(known))


def write_stream(path: Path, times: Sequence[float]) -> None:
    """Write an agent's GPU measurements at some times; the power is the index of the time."""
    lines = []
    for number, at in enumerate(times):
        devices = [
            {
                **{"index": gpu, "name": "NVIDIA A10", "percent": 95, "celsius": 60 + gpu},
                **{"used": 1 << 30, "total": 1 << 32, "watts": float(number), "clocks": {"sm": 1410}},
                "processes": {str(process): 1 << 30 for process in range(20)},
            }
            for gpu in range(2)
        ]
        lines.append(json.dumps({"time": at, "node": "n1", "devices": devices}) + "\n")
    path.write_text("".join(lines) + '{"time": 1')  # it is being written


def write_full_job(directory: Path, *, knows_peak: bool = True) -> Path:
    """Write a job with data for every plot; the one of TFLOP/s needs an unknown peak."""
    job = write_job(directory, knows_peak=knows_peak)
    write_trace(job)
    write_network(job)
    for number in range(4):
        write_stream(job / f"n{number:03d}.gpu.jsonl", [1795250000.0 + 60 * minute for minute in range(60)])
    return job


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "a browser is needed: apt-get install chromium"
    with sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"], timeout=_TIMEOUT_MS
        )
        yield started
        started.close()


class Opened:
    """A page in the browser, and what went wrong in it."""

    def __init__(self, page: Page, file: Path) -> None:
        self.page, self.wrong = page, list[str]()
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", self._hear)
        page.on("request", lambda requested: self.requested.append(requested.url))
        self.requested: list[str] = []
        page.set_default_timeout(_TIMEOUT_MS)
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached")

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.wrong.append(message.text)

    def plots(self) -> dict[str, int]:
        """Return how many points, cells or bars each plot has in the browser."""
        found: dict[str, int] = self.page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll("figure.plot")].map((figure) => [
                 figure.id,
                 figure.querySelector(".drawing")._fullData.reduce((sum, trace) =>
                   sum + (trace.z ? trace.z.flat() : trace.y).filter((one) => one !== null).length, 0)]))"""
        )
        return found

    def variants(self) -> dict[str, dict[str, int]]:
        """Select each option of a plot; return how many marks each picture has then."""
        found: dict[str, dict[str, int]] = self.page.evaluate(
            """async () => {
                 const marks = [".js-line", ".point", ".hm image"].map((one) => `.drawing ${one}`);
                 const seen = {};
                 for (const plot of JSON.parse(document.getElementById("plots").textContent)) {
                   const figure = document.getElementById(plot.id);
                   seen[plot.id] = {};
                   for (const { label } of plot.variants) {
                     const buttons = [...figure.querySelectorAll("button")];
                     if (plot.variants.length > 1) buttons.find((one) => one.textContent === label).click();
                     await new Promise(requestAnimationFrame);
                     seen[plot.id][label] = figure.querySelectorAll(marks.join()).length;
                   }
                 }
                 return seen;}"""
        )
        return found

    def traces(self, plot: str) -> list[dict[str, Any]]:
        """Return name, form and data of a plot's traces."""
        found: list[dict[str, Any]] = self.page.evaluate(
            """(plot) => document.querySelector(`#${plot} .drawing`)._fullData.map(
                 ({ name, type, x, y }) => ({ name, type, x, y }))""",
            plot,
        )
        return found

    def too_wide(self) -> list[str]:
        """Return elements that are wider than the window; the contents of tables are scrolled."""
        found: list[str] = self.page.evaluate(
            """() => [...document.querySelectorAll("main *")].filter((one) => {
                 if (!one.checkVisibility() || one.closest(".drawing, table")) return false;
                 const box = one.getBoundingClientRect();
                 return box.right > innerWidth + 1 || box.left < -1;
               }).map((one) => `${one.tagName} ${one.className} ${one.textContent.slice(0, 60)}`)"""
        )
        return found


@pytest.fixture
def opened(browser: Browser) -> Iterator[Any]:
    """Returns a function that opens a file in a window of a given size."""
    contexts = []

    def open_(file: Path, width: int = 1360, *, phone: bool = False) -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, is_mobile=phone, has_touch=phone
        )
        contexts.append(context)
        return Opened(context.new_page(), file)

    yield open_
    for context in contexts:
        context.close()
