# SPDX-License-Identifier: GPL-3.0-or-later
"""Plots over the steps: loss, time of a step, speed, and any field of the training lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rdm_log.grammars import MILLISECONDS
from rdm_log.report.drawing import BLACK, GREEN, VERMILLION, Plot, colour_of, dash_of, plot, short
from rdm_log.report.job import Job

_MARKED = 60
"""The most checkpoints that are marked."""
_FEW = 8
"""With fewer steps, each has its number on the axis."""
_ENDS = ("first_iteration", "last_iteration")
_NAMED = 3
"""The number of slowest steps with a label."""
_VALIDATED = re.compile(r"iteration (\d+)(?: on validation set)?")
"""The step of a validation loss. Newer Megatron versions name the set, which may also be the test set."""
TGS = "tokens per gpu per second (tgs)"
_SAMPLES = "samples per second"
TOKENS, SAMPLE_RATE = "tokens/s", "samples/s"
MFU = ("MFU (%)",)
TFLOPS = ("TFLOPs", "throughput per GPU (TFLOP/s/GPU)")


def _points(job: Job, name: str) -> Iterator[list[list[float]]]:
    """Yield the points ``[x, mean, least, most]`` of a field for each run that has it."""
    for run in job.runs:
        points = (run.get("series") or {}).get(name)
        if points:
            yield points


def _rows(segments: Iterable[Sequence[Sequence[float]]], *columns: int) -> list[list[float | None]]:
    """Return columns of points, with a gap between runs."""
    rows: list[Sequence[float | None]] = []
    for segment in segments:
        if rows:
            rows.append([None] * 4)
        rows += segment
    return [[short(row[column]) for row in rows] for column in columns]


def _line(
    number: int, jobs: Sequence[Job], segments: Sequence[Sequence[Sequence[float]]], unit: str
) -> dict[str, Any]:
    xs, ys = _rows(segments, 0, 1)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(xs) < 3 else "lines",
        "name": jobs[number].name,
        "x": xs,
        "y": ys,
        "line": {"color": colour_of(number), "width": 2, "dash": dash_of(number)},
        "showlegend": len(jobs) > 1,
        "hovertemplate": f"step %{{x:,}}: %{{y:.5~g}} {unit}",
        "meta": {"smooth": True},
    }


def _band(number: int, segments: Sequence[Sequence[Sequence[float]]]) -> Iterator[dict[str, Any]]:
    """Yield the area between the minimum and the maximum of points that stand for several steps."""
    for segment in segments:
        if all(point[2] == point[3] for point in segment):
            continue
        xs, least, most = _rows([segment], 0, 2, 3)
        yield {
            "type": "scatter",
            "mode": "lines",
            "x": [*xs, *reversed(xs)],
            "y": [*most, *reversed(least)],
            "fill": "toself",
            "fillcolor": colour_of(number),
            "opacity": 0.18,
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
        }


def _steps_axis(jobs: Sequence[Job]) -> dict[str, Any]:
    """Return the axis of the steps, with lines for restarts and marks for checkpoints."""
    shapes, notes = [], []
    for number, job in enumerate(jobs):
        for run in [run for run in job.runs if run["lines"]][1:]:
            shapes.append(_vertical(run["first_iteration"], colour_of(number), "dot"))
            if len(jobs) == 1:
                notes.append(_written(run["first_iteration"], "restart"))
        for run in job.runs:
            if run["loss"].get("not_finite_at"):
                shapes.append(_vertical(run["loss"]["not_finite_at"], VERMILLION, "solid"))
                notes.append(_written(run["loss"]["not_finite_at"], "NaN"))
            saved = run.get("checkpoints") or []
            if len(jobs) == 1 and len(saved) <= _MARKED:
                shapes += [_tick(iteration) for iteration in saved]
    xaxis: dict[str, Any] = {"title": {"text": "step"}, "tickformat": ",d"}
    steps = [run[end] for job in jobs for run in job.runs if run["lines"] for end in _ENDS]
    if steps and max(steps) - min(steps) < _FEW:
        # No ticks between two steps.
        xaxis["dtick"] = 1
    return {"xaxis": xaxis, "shapes": shapes, "annotations": notes}


def _vertical(x: float, colour: str, dash: str) -> dict[str, Any]:
    line = {"color": colour, "width": 1.5, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def _tick(x: float) -> dict[str, Any]:
    """Return the mark of a checkpoint, below the curve."""
    line = {"color": GREEN, "width": 3}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 0.035, "yref": "paper", "line": line}


def _written(x: float, text: str) -> dict[str, Any]:
    # Next to its line, within the plot: plotly's buttons are above the plot.
    position = {"x": x, "y": 0.5, "yref": "paper", "yanchor": "middle", "textangle": -90, "xshift": -8}
    return {**position, "text": text, "showarrow": False}


def loss(jobs: Sequence[Job]) -> Plot | None:
    """Return the plot of the losses, with validation losses, restarts and checkpoints."""
    data: list[dict[str, Any]] = []
    names = []
    for number, job in enumerate(jobs):
        name = next((run["loss"]["name"] for run in job.runs if run["loss"]["name"]), "")
        names.append(name)
        segments = list(_points(job, name))
        if not segments:
            continue
        data += _band(number, segments)
        data.append({**_line(number, jobs, segments, name), "showlegend": True})
        if len(jobs) == 1:
            data[-1]["name"] = name
        validated = [
            (int(match[1]), value)
            for run in job.runs
            for one in run["evaluations"]
            if (match := _VALIDATED.fullmatch(one["where"]))
            and (value := one.get(f"{name} value")) is not None
        ]
        if validated:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": f"validation{f' of {job.name}' if len(jobs) > 1 else ''}",
                    "x": [x for x, _ in validated],
                    "y": [short(y) for _, y in validated],
                    "marker": {
                        "symbol": "diamond",
                        "size": 9,
                        "color": BLACK if len(jobs) == 1 else colour_of(number),
                        "line": {"color": "#fff", "width": 1},
                    },
                    "hovertemplate": "step %{x:,}: %{y:.4f} in validation",
                }
            )
    unit = next(filter(None, names), "loss")
    layout = {**_steps_axis(jobs), "yaxis": {"title": {"text": unit}}}
    has_checkpoints = any(run.get("checkpoints") for job in jobs for run in job.runs) and len(jobs) == 1
    return plot(
        "loss",
        "Loss",
        data,
        layout,
        note="Green marks at the bottom are checkpoints." if has_checkpoints else "",
        wide=True,
        controls=("log", "smooth"),
    )


def step_time(jobs: Sequence[Job]) -> Plot | None:
    """Return the plot of step times, with labels at the slowest."""
    data: list[dict[str, Any]] = []
    words, is_less = [], False
    for number, job in enumerate(jobs):
        # The first line of a run includes building and warm-up.
        curves = list(_points(job, MILLISECONDS))
        segments = [points[1:] if len(points) > 1 else points for points in curves]
        if not segments:
            continue
        is_less |= segments != curves
        data += _band(number, segments)
        data.append(_line(number, jobs, segments, "ms"))
        slow = sorted(
            (tuple(one) for run in job.runs for one in run["step_ms"]["outliers"]), key=lambda one: -one[1]
        )
        if not slow:
            continue
        median = next(run["step_ms"]["median"] for run in reversed(job.runs) if run["step_ms"]["median"])
        data.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "name": "slow steps",
                "x": [iteration for iteration, _ in slow],
                "y": [short(time) for _, time in slow],
                "text": [f"{iteration:,}" for iteration, _ in slow[:_NAMED]],
                "textposition": "top center",
                "customdata": [f"{time / median:.1f} times the median" for _, time in slow],
                "cliponaxis": False,
                "marker": {"symbol": "x", "size": 8, "color": VERMILLION},
                "showlegend": False,
                "hovertemplate": "step %{x:,}: %{y:.5~g} ms, %{customdata}",
            }
        )
        for iteration, time in slow[:_NAMED] if len(jobs) == 1 else ():
            words.append(f"step {iteration:,} took {time / 1000:.1f} s, {time / median:.1f} times the median")
    layout = {**_steps_axis(jobs), "yaxis": {"title": {"text": "ms"}, "rangemode": "tozero"}}
    note = f"{'; '.join(words)}. " if words else ""
    note = note[:1].upper() + note[1:] + "A run's first line, with what it builds, is left out." * is_less
    return plot(
        "steptime",
        "Time of a step",
        data,
        layout,
        note=note,
        controls=("log", "smooth"),
    )


_Choice = Callable[[Job], tuple[list[list[list[float]]], str]]
"""A job → the points of each of its runs, and their unit."""


def field(*names: str) -> _Choice:
    """Return a choice of the first of some fields that a job has."""

    def choose(job: Job) -> tuple[list[list[list[float]]], str]:
        for name in names:
            if segments := list(_points(job, name)):
                return segments, "%" if "%" in name else ""
        return [], ""

    return choose


def token_rate(job: Job, run: Mapping[str, Any]) -> tuple[float, str]:
    """Return the best unit of speed for a run, and the factor from samples per second to it."""
    samples, tokens = run.get("samples_per_second"), run.get("tokens_per_second")
    if samples and tokens:
        return tokens / samples, TOKENS
    length = job.configuration.get("model.seq_length", "")
    if job.configuration.get("model.kind") == "gpt" and length.isdecimal():
        return float(length), TOKENS
    return 1.0, SAMPLE_RATE


def speed(jobs: Sequence[Job]) -> _Choice:
    """Return a choice of the speed, in the best unit that all jobs have."""
    per_gpu = all(any(_points(job, TGS)) for job in jobs)
    # All jobs share one axis, so they need one unit.
    has_tokens = all(
        token_rate(job, run)[1] == TOKENS
        for job in jobs
        for run in job.runs
        if _timed_batches(run) or _rates(run)
    )

    def choose(job: Job) -> tuple[list[list[list[float]]], str]:
        if per_gpu:
            return list(_points(job, TGS)), "tokens/s per GPU"
        found, unit = [], ""
        for run in job.runs:
            factor, own = token_rate(job, run) if has_tokens else (1.0, SAMPLE_RATE)
            if timed := _timed_batches(run):
                unit, rate = own, 1000.0 * run["global_batch_size"] * factor
                found.append([[x, *(rate / time for time in times if time)] for x, *times in timed])
            elif points := _rates(run):
                unit = own
                found.append([[x, *(rate * factor for rate in rates)] for x, *rates in points])
        return [points for points in found if all(len(point) == 4 for point in points)], unit

    return choose


def speed_note(jobs: Sequence[Job]) -> str:
    """Return a note on how the speed was computed, if the log does not have it."""
    timed = any(_timed_batches(run) for job in jobs for run in job.runs)
    if not timed or any(any(_points(job, TGS)) for job in jobs):
        return ""
    return "From the global batch and the time of a step."


def _timed_batches(run: Mapping[str, Any]) -> list[list[float]]:
    """Return the times of a run's steps, if the batch is known; otherwise none."""
    series: Mapping[str, list[list[float]]] = run.get("series") or {}
    return series.get(MILLISECONDS, []) if run.get("global_batch_size") else []


def _rates(run: Mapping[str, Any]) -> list[list[float]]:
    """Return the samples per second in a run's lines."""
    series: Mapping[str, list[list[float]]] = run.get("series") or {}
    return series.get(_SAMPLES) or []


def curve(
    jobs: Sequence[Job],
    id_: str,
    title: str,
    choose: _Choice,
    *,
    note: str = "",
    controls: Sequence[str] = (),
    band: bool = False,
    varying: bool = False,
    positive: bool = False,
    ticks: str | None = None,
) -> Plot | None:
    """Return the plot of a field over the steps, or None.

    Args:
        jobs: The jobs, each with a curve.
        id_: The plot's id in the page.
        title: The title above it.
        choose: Returns the values of a job to draw.
        note: A note below the title.
        controls: The controls for the reader: ``log``, ``smooth``.
        band: Draw the extremes around the mean, too.
        varying: Return None if all values are equal.
        positive: Return None if all values are 0, like TFLOP/s without an accelerator.
        ticks: The number format of the axis.
    """
    data: list[dict[str, Any]] = []
    unit, values = "", set()
    for number, job in enumerate(jobs):
        segments, own = choose(job)
        if not segments:
            continue
        unit = own or unit
        values |= {point[1] for segment in segments for point in segment}
        if band:
            data += _band(number, segments)
        data.append(_line(number, jobs, segments, own))
    if (varying and len(values) < 2) or (positive and not any(values)):
        return None
    yaxis = {"title": {"text": unit}, "rangemode": "tozero", "tickformat": ticks}
    layout = {**_steps_axis(jobs), "yaxis": yaxis}
    return plot(id_, title, data, layout, note=note, controls=controls)
