# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs → what plotly draws, as plain data. What a plot shows is decided here; the page's script only draws.

Colours are those of Okabe and Ito, "Color Universal Design", which colour-blind people can tell apart; jobs
that are compared differ in their dashes, too, for who prints without colours.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rdm_log.lines import MILLISECONDS
from rdm_log.report.devices import MEASURES
from rdm_log.report.job import Job, timeline_of
from rdm_log.timeline import Span, Timeline, bubble

__all__ = ["MFU", "TFLOPS", "TGS", "Plot", "plots", "token_rate"]

Plot = dict[str, Any]
"""``id``, ``title``, ``note``, ``wide``, ``controls``, ``variants``: each a ``label`` and plotly's input."""

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#222222", "#8C8C8C"
BUBBLE = "#E4E4E4"
JOB_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
KIND_COLOURS = {
    "forward": BLUE,
    "backward": GREEN,
    "send": SKY,
    "receive": ORANGE,
    "reduce": PURPLE,
    "optimiser": VERMILLION,
    "load": GREY,
    "other": "#B8B8B8",
}

_MARKED = 60
"""At most so many checkpoints are marked."""
_FEW = 8
"""So few steps each have their number on the axis."""
_ENDS = ("first_iteration", "last_iteration")
_NAMED = 3
"""So many of the slowest steps have their number beside them."""
_GPU_ROWS = 96
"""Up to so many GPUs each has a row of the heat map; beyond, each node."""
_BARS = 512
"""Beyond so many ranks, bars are lines."""
_TIMELINES = 4
"""Of so many steps the timeline is shown, one at a time."""
TGS = "tokens per gpu per second (tgs)"
MFU = ("MFU (%)",)
TFLOPS = ("TFLOPs", "throughput per GPU (TFLOP/s/GPU)")


def plots(jobs: Sequence[Job]) -> list[Plot]:
    """Return the plots of a page about some jobs, in its order; those without data are left out."""
    found = [
        _loss(jobs),
        _step_time(jobs),
        _curve(jobs, "speed", "Speed", _speed(jobs), note=_speed_note(jobs)),
        _curve(jobs, "mfu", "Model FLOPs utilisation", _field(*MFU))
        or _curve(jobs, "tflops", "TFLOP/s per GPU", _field(*TFLOPS)),
        _curve(jobs, "lr", "Learning rate", _field("learning rate"), ticks=".1e"),
        _curve(jobs, "gradnorm", "Gradient norm", _field("grad norm"), controls=("log", "smooth"), band=True),
        _curve(jobs, "lossscale", "Loss scale", _field("loss scale"), controls=("log",), varying=True),
        _memory(jobs),
    ]
    for number, job in enumerate(jobs):
        which = f" of {job.name}" if len(jobs) > 1 else ""
        found += [_gantt(job, number, which), _shares(job, number, which)]
        found += [_devices(job, number, which), _fabric(job, number, which)]
    return [plot for plot in found if plot is not None]


def _plot(
    id_: str,
    title: str,
    data: list[dict[str, Any]] | None = None,
    layout: Mapping[str, Any] | None = None,
    *,
    note: str = "",
    wide: bool = False,
    controls: Sequence[str] = (),
    variants: list[dict[str, Any]] | None = None,
) -> Plot | None:
    variants = variants or ([{"label": "", "data": data, "layout": layout or {}}] if data else [])
    if not variants:
        return None
    return {
        "id": id_,
        "title": title,
        "note": note,
        "wide": wide,
        "controls": list(controls),
        "variants": variants,
    }


# Curves over the steps.


def _points(job: Job, name: str) -> Iterator[list[list[float]]]:
    """Yield a field's points ``[x, mean, least, most]`` of each run that has it."""
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
    return [[_short(row[column]) for row in rows] for column in columns]


def _short(value: float | None) -> float | None:
    """Return six digits of a number: more cannot be seen, and the page is half as large."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(f"{value:.6g}")


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
        "line": {"color": _colour(number), "width": 2, "dash": _dash(number)},
        "showlegend": len(jobs) > 1,
        "hovertemplate": f"step %{{x:,}}: %{{y:.5~g}} {unit}",
        "meta": {"smooth": True},
    }


def _colour(number: int) -> str:
    return JOB_COLOURS[number % len(JOB_COLOURS)]


def _dash(number: int) -> str:
    return DASHES[number % len(DASHES)]


def _band(number: int, segments: Sequence[Sequence[Sequence[float]]]) -> Iterator[dict[str, Any]]:
    """Yield what lies between the least and the most of points that stand for several steps."""
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
            "fillcolor": _colour(number),
            "opacity": 0.18,
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
        }


def _steps_axis(jobs: Sequence[Job]) -> dict[str, Any]:
    """Return the axis of the steps, with a line where a run began anew and marks for checkpoints."""
    shapes, notes = [], []
    for number, job in enumerate(jobs):
        for run in [run for run in job.runs if run["lines"]][1:]:
            shapes.append(_vertical(run["first_iteration"], _colour(number), "dot"))
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
        # There is nothing between two steps.
        xaxis["dtick"] = 1
    return {"xaxis": xaxis, "shapes": shapes, "annotations": notes}


def _vertical(x: float, colour: str, dash: str) -> dict[str, Any]:
    line = {"color": colour, "width": 1.5, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def _tick(x: float) -> dict[str, Any]:
    """Return a mark of a checkpoint below the curve."""
    line = {"color": GREEN, "width": 3}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 0.035, "yref": "paper", "line": line}


def _written(x: float, text: str) -> dict[str, Any]:
    return {"x": x, "y": 1, "yref": "paper", "text": text, "showarrow": False, "yanchor": "bottom"}


def _loss(jobs: Sequence[Job]) -> Plot | None:
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
            (int(one["where"].rpartition(" ")[2]), value)
            for run in job.runs
            for one in run["evaluations"]
            if one["where"].startswith("iteration ") and one["where"].rpartition(" ")[2].isdecimal()
            for value in [one.get(name)]
            if value is not None
        ]
        if validated:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": f"validation{f' of {job.name}' if len(jobs) > 1 else ''}",
                    "x": [x for x, _ in validated],
                    "y": [_short(y) for _, y in validated],
                    "marker": {
                        "symbol": "diamond",
                        "size": 9,
                        "color": BLACK if len(jobs) == 1 else _colour(number),
                        "line": {"color": "#fff", "width": 1},
                    },
                    "hovertemplate": "step %{x:,}: %{y:.4f} in validation",
                }
            )
    unit = next(filter(None, names), "loss")
    layout = {**_steps_axis(jobs), "yaxis": {"title": {"text": unit}}}
    has_checkpoints = any(run.get("checkpoints") for job in jobs for run in job.runs) and len(jobs) == 1
    return _plot(
        "loss",
        "Loss",
        data,
        layout,
        note="Green marks at the bottom are checkpoints." if has_checkpoints else "",
        wide=True,
        controls=("log", "smooth"),
    )


def _step_time(jobs: Sequence[Job]) -> Plot | None:
    data: list[dict[str, Any]] = []
    words = []
    for number, job in enumerate(jobs):
        # The first line of a run has its building and warming up in it.
        segments = [points[1:] if len(points) > 1 else points for points in _points(job, MILLISECONDS)]
        if not segments:
            continue
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
                "y": [_short(time) for _, time in slow],
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
    note = f"{'; '.join(words)}." if words else ""
    return _plot(
        "steptime",
        "Time of a step",
        data,
        layout,
        note=note[:1].upper() + note[1:],
        controls=("log", "smooth"),
    )


Choice = Callable[[Job], tuple[list[list[list[float]]], str]]
"""A job → the points of each of its runs, and their unit."""


def _field(*names: str) -> Choice:
    """Return the choice of the first field that a job has."""

    def choose(job: Job) -> tuple[list[list[list[float]]], str]:
        for name in names:
            if segments := list(_points(job, name)):
                return segments, "%" if "%" in name else ""
        return [], ""

    return choose


def token_rate(job: Job, run: Mapping[str, Any]) -> tuple[float, str]:
    """Return what turns samples per second of a run into the best unit of speed there is, and that unit."""
    samples, tokens = run.get("samples_per_second"), run.get("tokens_per_second")
    if samples and tokens:
        return tokens / samples, "tokens/s"
    length = job.configuration.get("model.seq_length", "")
    if job.configuration.get("model.kind") == "gpt" and length.isdecimal():
        return float(length), "tokens/s"
    return 1.0, "samples/s"


def _speed(jobs: Sequence[Job]) -> Choice:
    per_gpu = all(any(_points(job, TGS)) for job in jobs)

    def choose(job: Job) -> tuple[list[list[list[float]]], str]:
        if per_gpu:
            return list(_points(job, TGS)), "tokens/s per GPU"
        found, unit = [], ""
        for run in job.runs:
            points, batch = (run.get("series") or {}).get(MILLISECONDS), run.get("global_batch_size")
            if points and batch:
                factor, unit = token_rate(job, run)
                rate = 1000.0 * batch * factor
                found.append([[x, *(rate / time for time in times if time)] for x, *times in points])
        return [points for points in found if all(len(point) == 4 for point in points)], unit

    return choose


def _speed_note(jobs: Sequence[Job]) -> str:
    if any(any(_points(job, TGS)) for job in jobs):
        return ""
    return "From the global batch and the time of a step."


def _curve(
    jobs: Sequence[Job],
    id_: str,
    title: str,
    choose: Choice,
    *,
    note: str = "",
    controls: Sequence[str] = (),
    band: bool = False,
    varying: bool = False,
    ticks: str | None = None,
) -> Plot | None:
    """Return the plot of a field over the steps; None without data, or if it is to be VARYING and is not."""
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
    if varying and len(values) < 2:
        return None
    yaxis = {"title": {"text": unit}, "rangemode": "tozero", "tickformat": ticks}
    layout = {**_steps_axis(jobs), "yaxis": yaxis}
    return _plot(id_, title, data, layout, note=note, controls=controls)


# Over ranks, nodes and time.


def _memory(jobs: Sequence[Job]) -> Plot | None:
    data: list[dict[str, Any]] = []
    for number, job in enumerate(jobs):
        told: dict[int, Mapping[str, float]] = {}
        for run in job.runs:
            told |= {int(rank): sizes for rank, sizes in run["memory_mib"].items()}
        ranks = sorted(told)
        for name, opacity in (("max allocated", 1.0), ("max reserved", 0.45)):
            sizes = [_short(told[rank].get(name, 0.0) / 1024) for rank in ranks]
            if not any(sizes):
                continue
            label = f"{name}{f', {job.name}' if len(jobs) > 1 else ''}"
            common: dict[str, Any] = {
                "name": label,
                "x": ranks,
                "y": sizes,
                "opacity": opacity,
                "hovertemplate": f"rank %{{x}}: %{{y:.2f}} GiB {name}",
            }
            if len(ranks) > _BARS:
                data.append(
                    {"type": "scatter", "mode": "lines", "line": {"color": _colour(number)}, **common}
                )
            else:
                data.append({"type": "bar", "marker": {"color": _colour(number)}, **common})
    layout = {
        "xaxis": {"title": {"text": "rank"}, "dtick": 1 if data and len(data[0]["x"]) <= 16 else None},
        "yaxis": {"title": {"text": "GiB"}, "rangemode": "tozero"},
        "barmode": "group",
    }
    return _plot("memory", "Memory per rank", data, layout, note="The most that each rank had at any time.")


def _devices(job: Job, number: int, which: str) -> Plot | None:
    """Return the heat map over nodes and time, a variant for each measure."""
    if not job.devices:
        return None
    gpus = sum(len(told["gpus"]) for told in job.devices.values())
    columns = max(told["columns"] for told in job.devices.values())
    xaxis: dict[str, Any] = {"title": {"text": "part of the job's time in %"}}
    xs: list[Any] = [_short(100 * column / max(1, columns - 1)) for column in range(columns)]
    spans = {node: _span_s(told["times"]) for node, told in job.devices.items() if told["times"]}
    # Times of some nodes only say nothing of the others'.
    whole = None
    if len(spans) == len(job.devices):
        xaxis = {"title": {"text": "time"}}
        whole = min(begin for begin, _ in spans.values()), max(end for _, end in spans.values())
        xs = _moments(whole, columns)
    taken = {
        node: _taken(told["columns"], columns, spans.get(node), whole) for node, told in job.devices.items()
    }
    variants: list[dict[str, Any]] = []
    notes: list[str] = []
    for measure, (title, unit, highest) in MEASURES.items():
        rows = list(_device_rows(job, measure, highest, each=gpus <= _GPU_ROWS, taken=taken))
        if not rows:
            continue
        heights = {"utilisation": 100.0, "memory": 100.0}
        highest_value = max(value for _, values in rows for value in values if value is not None)
        data = {
            "type": "heatmap",
            "x": xs,
            "y": [name for name, _ in rows],
            "z": [[None if value is None else round(value) for value in values] for _, values in rows],
            "zmin": 0 if measure in heights or measure in ("power", "clock") else None,
            "zmax": heights.get(measure, highest_value),
            "colorscale": "Cividis",
            "colorbar": {"title": {"text": unit}, "thickness": 12},
            "hoverongaps": False,
            "hovertemplate": f"%{{y}}: %{{z}} {unit}<extra></extra>",
        }
        layout = {
            "xaxis": xaxis,
            # As they are, also where they look like numbers or dates; the first one at the top.
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
            "height": max(220, min(900, 90 + 18 * len(rows))),
        }
        variants.append({"label": title, "data": [data], "layout": layout})
        notes += _remarkable(measure, rows)
    return _plot(
        f"gpus{number}",
        f"GPUs{which} over time",
        note=" ".join(notes),
        wide=True,
        variants=variants,
    )


def _span_s(times: Sequence[str]) -> tuple[float, float]:
    """Return the times of the first and the last record in seconds, by a clock that shows no zone."""
    utc = datetime.UTC
    first, last = (datetime.datetime.fromisoformat(one).replace(tzinfo=utc).timestamp() for one in times)
    return first, last


def _moments(whole: tuple[float, float], columns: int) -> list[str]:
    begin, end = (datetime.datetime.fromtimestamp(one, datetime.UTC).replace(tzinfo=None) for one in whole)
    return [
        (begin + (end - begin) * column / max(1, columns - 1)).isoformat(" ", "seconds")
        for column in range(columns)
    ]


def _taken(
    own: int, columns: int, span: tuple[float, float] | None, whole: tuple[float, float] | None
) -> list[int | None]:
    """Return which of a node's columns is at each column of the picture; None where it has none."""
    if span is None or whole is None:
        return [column * own // columns for column in range(columns)]
    width = (whole[1] - whole[0]) / columns
    found: list[int | None] = []
    for column in range(columns):
        middle = whole[0] + (column + 0.5) * width
        # A node whose records begin or end within a column is in it.
        if not span[0] - width / 2 <= middle <= span[1] + width / 2:
            found.append(None)
            continue
        place = (middle - span[0]) / max(span[1] - span[0], 1e-9) * own
        found.append(min(own - 1, max(0, int(place))))
    return found


def _device_rows(
    job: Job, measure: str, highest: bool, *, each: bool, taken: Mapping[str, Sequence[int | None]]
) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the rows of the heat map: a name and a value for each column."""
    for node, told in job.devices.items():
        own = [(gpu, values[measure]) for gpu, values in told["gpus"].items() if measure in values]
        if each:
            for gpu, values in own:
                yield (node if len(own) == 1 else f"{node}:{gpu}"), _placed(values, taken[node])
        elif own:
            together = [_together(values, highest) for values in zip(*(v for _, v in own), strict=True)]
            yield node, _placed(together, taken[node])


def _placed(values: Sequence[float | None], taken: Sequence[int | None]) -> list[float | None]:
    return [None if place is None else values[place] for place in taken]


def _together(values: Iterable[float | None], highest: bool) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return max(known) if highest else sum(known) / len(known)


def _remarkable(measure: str, rows: Sequence[tuple[str, Sequence[float | None]]]) -> Iterator[str]:
    """Yield which node or GPU is unlike the others: among a thousand rows nobody would see it."""
    means = {
        name: statistics.fmean(known)
        for name, values in rows
        if (known := [value for value in values if value is not None])
    }
    if len(means) < 3:
        return
    median = statistics.median(means.values())
    if measure == "utilisation":
        name = min(means, key=lambda one: means[one])
        if median - means[name] > 15:
            yield f"{name} was the least busy: {means[name]:.0f} % on average, others {median:.0f} %."
    if measure == "temperature":
        name = max(means, key=lambda one: means[one])
        if means[name] - median > 8:
            yield f"{name} was the hottest: {means[name]:.0f} °C on average, others {median:.0f} °C."


def _fabric(job: Job, number: int, which: str) -> Plot | None:
    """Return the matrix of round-trip times between nodes."""
    if job.fabric is None:
        return None
    nodes = list(job.fabric.get("nodes") or job.fabric["rtt_us"])
    times = job.fabric["rtt_us"]
    data = {
        "type": "heatmap",
        "x": nodes,
        "y": nodes,
        "z": [[_short(times.get(one, {}).get(other)) for other in nodes] for one in nodes],
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": "µs"}, "thickness": 12},
        "hoverongaps": False,
        "hovertemplate": "%{y} to %{x}: %{z} µs<extra></extra>",
    }
    layout = {
        "xaxis": {"type": "category", "title": {"text": "to"}},
        "yaxis": {
            "type": "category",
            "title": {"text": "from"},
            "autorange": "reversed",
            "automargin": True,
        },
        "height": max(320, min(800, 90 + 18 * len(nodes))),
    }
    return _plot(f"fabric{number}", f"Round-trip times{which} between nodes", [data], layout)


# The timeline of a step.


def _gantt(job: Job, number: int, which: str) -> Plot | None:
    if job.timeline is None:
        return None
    timeline = timeline_of(job.timeline)
    steps = timeline.steps
    if timeline.source == "timers":
        # A whole interval of the log is in it; its last steps are the usual ones.
        steps = [step for step in steps if _is_whole(timeline, step)][-_TIMELINES:] or steps[-1:]
    variants = [_gantt_of(timeline.of_step(step), step) for step in steps[:_TIMELINES]]
    share = bubble(timeline)
    words = []
    if share is not None:
        words.append(
            f"The bubble is {100 * share:.0f} % of the time from the first forward to the last backward pass."
        )
    if timeline.uncertainty is not None and len(set(timeline.nodes.values())) > 1:
        words.append(f"The nodes' clocks agree to {timeline.uncertainty / 1000:.2g} ms.")
    return _plot(
        f"timeline{number}",
        f"A step{which}, rank by rank",
        note=" ".join(words),
        wide=True,
        variants=variants,
    )


def _is_whole(timeline: Timeline, step: int) -> bool:
    kinds = {span.kind for spans in timeline.spans.values() for span in spans if span.step == step}
    return {"forward", "backward"} <= kinds


def _gantt_of(timeline: Timeline, step: int) -> dict[str, Any]:
    """Return the picture of one step: a row for each rank, a trace for each kind of span."""
    ranks = sorted(timeline.spans, key=lambda rank: (timeline.stages.get(rank, 0), rank))
    begin = min(span.begin for spans in timeline.spans.values() for span in spans)
    height = max(8, min(22, 560 // len(ranks)))
    data = []
    for kind, colour in KIND_COLOURS.items():
        xs: list[float | None] = []
        ys: list[int | None] = []
        texts: list[str | None] = []
        for row, rank in enumerate(ranks):
            for span in timeline.spans[rank]:
                if span.kind == kind:
                    xs += [_ms(span.begin - begin), _ms(span.end - begin), None]
                    ys += [row, row, None]
                    texts += [_said(span, rank)] * 2 + [None]
        if xs:
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": kind,
                    "x": xs,
                    "y": ys,
                    "text": texts,
                    "line": {"color": colour, "width": height},
                    "hovertemplate": "%{text}<extra></extra>",
                }
            )
    passes = [
        span for spans in timeline.spans.values() for span in spans if span.kind in ("forward", "backward")
    ]
    shapes = []
    if passes and timeline.is_pipeline:
        # What stays visible of it is the bubble; the legend's entry has no points of its own.
        line = {"color": BUBBLE, "width": height}
        data.append(
            {"type": "scatter", "mode": "lines", "name": "bubble", "x": [None], "y": [0], "line": line}
        )
        for row in range(len(ranks)):
            shapes.append(
                {
                    "type": "rect",
                    "layer": "below",
                    "x0": _ms(min(span.begin for span in passes) - begin),
                    "x1": _ms(max(span.end for span in passes) - begin),
                    "y0": row - 0.36,
                    "y1": row + 0.36,
                    "fillcolor": BUBBLE,
                    "line": {"width": 0},
                }
            )
    names = [
        f"stage {timeline.stages[rank]}, rank {rank}"
        if timeline.is_pipeline and rank in timeline.stages
        else f"rank {rank}"
        for rank in ranks
    ]
    layout = {
        "xaxis": {"title": {"text": "ms"}},
        "yaxis": {
            "tickvals": list(range(len(ranks))),
            "ticktext": names,
            "range": [len(ranks) - 0.4, -0.6],
            "fixedrange": True,
            "automargin": True,
            "showgrid": False,
        },
        "shapes": shapes,
        "showlegend": True,
        "hovermode": "closest",
        "height": max(220, min(900, 120 + (height + 8) * len(ranks))),
    }
    return {"label": f"step {step}", "data": data, "layout": layout}


def _ms(microseconds: float) -> float:
    return round(microseconds / 1000, 3)


def _said(span: Span, rank: int) -> str:
    batch = f", micro-batch {span.micro_batch}" if span.micro_batch >= 0 else ""
    return f"rank {rank}: {span.name}{batch}, {(span.end - span.begin) / 1000:.2f} ms"


def _shares(job: Job, number: int, which: str) -> Plot | None:
    """Return how each rank spends a step."""
    if job.timeline is None:
        return None
    told = job.timeline["shares_ms"]
    ranks = sorted(told, key=int)
    data = [
        {
            "type": "bar" if len(ranks) <= _BARS else "scatter",
            "name": kind,
            "x": [int(rank) for rank in ranks],
            "y": [_short(told[rank].get(kind, 0.0)) for rank in ranks],
            "marker": {"color": colour},
            **({} if len(ranks) <= _BARS else {"mode": "lines", "stackgroup": "one"}),
            "hovertemplate": f"rank %{{x}}: %{{y:.5~g}} ms {kind}",
        }
        for kind, colour in KIND_COLOURS.items()
        if any(told[rank].get(kind) for rank in ranks)
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "rank"}, "dtick": 1 if len(ranks) <= 16 else None},
        "yaxis": {"title": {"text": "ms a step"}},
        "showlegend": True,
    }
    return _plot(f"shares{number}", f"Where the time of a step{which} goes", data, layout)
