# SPDX-License-Identifier: GPL-3.0-or-later
"""Logs of jobs, made by a program, and a real browser for the pages that are made of them."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

STEPS = 400
SLOW = 161
RESTARTED_AT = 201
LAST = 260


def training_line(number: int, rng: random.Random) -> str:
    milliseconds = 9000.0 if number == SLOW else 1400 + rng.gauss(0, 20)
    loss = 2.4 + 8.5 * math.exp(-number / 60)
    return (
        f" iteration {number:8d}/{STEPS:8d} | consumed samples: {number * 64:12d} |"
        f" consumed tokens: {number * 65536:12d} | elapsed time per iteration (ms): {milliseconds:.1f} |"
        f" learning rate: {1.5e-4 * min(1, number / 50):.3E} | global batch size:    64 |"
        f" lm loss: {loss:.6E} | loss scale: {65536.0 if number % 50 else 32768.0} | grad norm: 1.500 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |"
        f" tokens per gpu per second (tgs): {4000.0:.3f} | TFLOPs: 61.00 | MFU (%): 48.00 |\n"
    )


def write_job(directory: Path, nodes: int = 4, seed: int = 1) -> Path:
    """Write a job's logs in FASOP's layout: restarted once, its second node's first GPU half idle."""
    rng = random.Random(seed)
    directory.mkdir(parents=True)
    names = [f"n{number:03d}" for number in range(nodes)]
    for number, name in enumerate(names):
        lines = []
        if number == 0:
            # Rank 0 tells of starts, the last rank of steps.
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
            lines += [training_line(step, rng) for step in range(1, 241)]
            lines += [training_line(step, rng) for step in range(RESTARTED_AT, LAST + 1)]
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


def write_trace(directory: Path, *, stages: int = 2, steps: tuple[int, ...] = (20, 21)) -> None:
    """Write step traces of a pipeline whose every pass takes 10 ms, one micro-batch after the other."""
    (directory / "trace").mkdir(parents=True)
    for stage in range(stages):
        spans: list[list[Any]] = []
        for step in steps:
            begin = 1e6 * step
            for batch in range(2):
                first = begin + 10_000 * (stage + batch)
                last = begin + 10_000 * (2 * stages - stage + batch)
                spans.append(["forward", "ForwardPass", step, batch, first, 10_000])
                spans.append(["backward", "BackwardPass", step, batch, last, 10_000])
            spans.append(["optimiser", "OptimizerStep", step, -1, begin + 20_000 * (stages + 2), 5_000])
        told = {
            "version": 1,
            "rank": stage,
            "node": f"n{stage}",
            "pipeline": stages,
            "pipeline_rank": stage,
            "clock_uncertainty_us": 40.0,
            "spans": spans,
        }
        (directory / "trace" / f"rank-{stage:05d}.json").write_text(json.dumps(told))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "a browser is needed: apt-get install chromium"
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


class Opened:
    """A page in the browser, and what went wrong in it."""

    def __init__(self, page: Page, file: Path) -> None:
        self.page, self.wrong = page, list[str]()
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", self._hear)
        page.on("request", lambda asked: self.asked.append(asked.url))
        self.asked: list[str] = []
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached", timeout=120_000)

    def _hear(self, said: ConsoleMessage) -> None:
        if said.type == "error":
            self.wrong.append(said.text)

    def plots(self) -> dict[str, int]:
        """Return how many points, cells or bars each plot really has."""
        found: dict[str, int] = self.page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll("figure.plot")].map((figure) => [
                 figure.id,
                 figure.querySelector(".drawing")._fullData.reduce((sum, trace) =>
                   sum + (trace.z ? trace.z.flat() : trace.y).filter((one) => one !== null).length, 0)]))"""
        )
        return found


@pytest.fixture
def opened(browser: Browser) -> Iterator[Any]:
    """Open a file in a window of a size."""
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
