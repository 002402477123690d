# SPDX-License-Identifier: GPL-3.0-or-later
"""Plots of a step, rank by rank, and of how ranks spend it."""

from __future__ import annotations

from typing import Any

from rdm_log.report.drawing import BARS, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, Plot, plot, short
from rdm_log.report.job import Job, timeline_of
from rdm_log.timeline import Span, Timeline, bubble

_BUBBLE = "#E4E4E4"
_KIND_COLOURS = {
    "forward": BLUE,
    "backward": GREEN,
    "send": SKY,
    "receive": ORANGE,
    "reduce": PURPLE,
    "optimiser": VERMILLION,
    "load": GREY,
    "other": "#B8B8B8",
}
_TIMELINES = 4
"""The most steps with a timeline; one is shown at a time."""


def gantt(job: Job, number: int, which: str) -> Plot | None:
    """Return the timeline of the ranks, with a variant for each step."""
    if job.timeline is None or not job.timeline["spans"]:
        return None
    timeline = timeline_of(job.timeline)
    steps = timeline.steps
    if timeline.source == "timers":
        # It covers a whole logging interval; the last steps are the most typical.
        steps = [step for step in steps if _is_whole(timeline, step)][-_TIMELINES:] or steps[-1:]
    variants = [_gantt_of(timeline.of_step(step), step) for step in steps[:_TIMELINES]]
    share = bubble(timeline)
    words = []
    if share is not None:
        words.append(
            f"The bubble is {100 * share:.0f} % of the time from the first forward to the last backward pass."
        )
    if timeline.uncertainty is not None and len(set(timeline.nodes.values())) > 1:
        # No measurement is more exact than a microsecond.
        accuracy = max(timeline.uncertainty, 1.0) / 1000
        words.append(f"The nodes' clocks agree to {accuracy:.2g} ms.")
    return plot(
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
    """Return the plot of one step: a row for each rank, a trace for each kind of span."""
    ranks = sorted(timeline.spans, key=lambda rank: (timeline.stages.get(rank, 0), rank))
    begin = min(span.begin for spans in timeline.spans.values() for span in spans)
    height = max(8, min(22, 560 // len(ranks)))
    data = []
    for kind, colour in _KIND_COLOURS.items():
        xs: list[float | None] = []
        ys: list[int | None] = []
        texts: list[str | None] = []
        for row, rank in enumerate(ranks):
            for span in timeline.spans[rank]:
                if span.kind == kind:
                    xs += [_ms(span.begin - begin), _ms(span.end - begin), None]
                    ys += [row, row, None]
                    texts += [_label(span, rank)] * 2 + [None]
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
        # Spans cover a grey rectangle; what stays visible is the bubble. Its legend entry has no points.
        line = {"color": _BUBBLE, "width": height}
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
                    "fillcolor": _BUBBLE,
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


def _label(span: Span, rank: int) -> str:
    batch = f", micro-batch {span.micro_batch}" if span.micro_batch >= 0 else ""
    return f"rank {rank}: {span.name}{batch}, {(span.end - span.begin) / 1000:.2f} ms"


def shares(job: Job, number: int, which: str) -> Plot | None:
    """Return the plot of how each rank spends a step."""
    if job.timeline is None:
        return None
    by_rank = job.timeline["shares_ms"]
    ranks = sorted(by_rank, key=int)
    data = [
        {
            "type": "bar" if len(ranks) <= BARS else "scatter",
            "name": kind,
            "x": [int(rank) for rank in ranks],
            "y": [short(by_rank[rank].get(kind, 0.0)) for rank in ranks],
            "marker": {"color": colour},
            **({} if len(ranks) <= BARS else {"mode": "lines", "stackgroup": "one"}),
            "hovertemplate": f"rank %{{x}}: %{{y:.5~g}} ms {kind}",
        }
        for kind, colour in _KIND_COLOURS.items()
        if any(by_rank[rank].get(kind) for rank in ranks)
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "rank"}, "dtick": 1 if len(ranks) <= 16 else None},
        "yaxis": {"title": {"text": "ms a step"}},
        "showlegend": True,
    }
    return plot(f"shares{number}", f"Where the time of a step{which} goes", data, layout)
