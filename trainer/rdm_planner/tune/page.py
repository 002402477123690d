# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of ``tune`` as one HTML page that needs no other file and no network."""

from __future__ import annotations

import datetime
import importlib.resources
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from rdm_core.errors import TrainerError
from rdm_log import report as reports
from rdm_planner.interleaved import timeline
from rdm_planner.tune.answer import Answer

_WIDTH, _LEFT, _ROW = 1100, 150, 26
_MOST_SHOWN = 24
"""Micro-batches in the diagram: more are too narrow to see."""
# Okabe and Ito's colours, as in the reports.
_COLOURS = {
    "compute": "#0072b2",
    "context exchange": "#f0e442",
    "expert exchange": "#56b4e9",
    "bubble": "#b8bfca",
    "pipeline sends": "#e69f00",
    "data reduction": "#d55e00",
    "embedding reduction": "#cc79a7",
    "optimiser": "#009e73",
}
_COLUMNS = (
    *("step s", "tokens/s", "MFU %", "tensor", "data", "pipeline", "virtual", "expert", "context"),
    *("micro-batch", "ZeRO", "eager forwards", "checkpointing", "GiB", "bubble %", "partition"),
)


def write(answer: Answer, path: Path) -> None:
    """Write the page, replacing an existing file.

    Raises:
        TrainerError: The page cannot be written.
    """
    try:
        path.write_text(page(answer), encoding="utf-8")
    except OSError as error:
        raise TrainerError(f"--html {path} cannot be written: {error.strerror}.") from None


def page(answer: Answer) -> str:
    """Return the page."""
    here = importlib.resources.files(__package__)
    style = importlib.resources.files(reports) / "assets" / "report.css"
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        (here / "page.html.j2").read_text("utf-8")
    )
    made = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, {answer.layouts} layouts."
    return template.render(
        name=answer.job.name,
        style=style.read_text("utf-8"),
        measured=answer.is_measured,
        source=_source(answer),
        tiles=_tiles(answer),
        diagram=_diagram(answer),
        bars=_bars(answer),
        colours=list(_COLOURS.items()),
        front=_front(answer),
        columns=_COLUMNS,
        rows=[_cells(row) for row in answer.rows],
        rejected=answer.rejected,
        made=" ".join(filter(None, (made, answer.mfu_note()))),
    )


def _source(answer: Answer) -> str:
    if answer.is_measured:
        files = dict.fromkeys(source for source, _profile in answer.fleet.profiles.values())
        return f"as measured: {', '.join(files)}"
    if left_out := answer.fleet.left_out:
        return f"from published peaks and bandwidths; --guess leaves out {left_out}"
    return f"from published peaks and bandwidths; measure: {answer.fleet.measure}"


def _tiles(answer: Answer) -> list[tuple[str, str, str]]:
    best = answer.rows[0]
    degrees = f"{best['tensor']} x {best['data']} x {best['pipeline']}"
    more = f", virtual {best['virtual_pipeline']}" if best["virtual_pipeline"] > 1 else ""
    more += f", eager forwards {best['eager_forwards']}" if best["eager_forwards"] else ""
    more += f", expert {best['expert']}" if answer.job.spec.experts else ""
    more += f", context {best['context']}" if best["context"] > 1 else ""
    placed = ", ".join(best["placement"] or best["nodes"])
    return [
        ("step", f"{best['seconds']:.3f} s", "predicted"),
        ("tokens/s", f"{best['tokens_per_second']:,.0f}", ""),
        ("tensor x data x pipeline", degrees, f"micro-batch {best['micro_batch']}{more}"),
        ("memory", f"{best['memory_gib']:.1f} GiB", "of the fullest GPU"),
        ("nodes", str(len(best["nodes"])), placed if len(placed) < 200 else ""),
    ]


def _diagram(answer: Answer) -> dict[str, Any]:
    best = answer.estimates[0]
    all_of_them = best.layout.accumulation(answer.job.optimisation.global_batch_size)
    stages, chunks = best.layout.pipeline, best.layout.virtual_pipeline
    shown = min(all_of_them, _MOST_SHOWN)
    if chunks > 1:
        shown = max(stages, shown - shown % stages)
    # All chunks are drawn with the same size.
    times = [seconds / chunks for seconds in best.stage_seconds] * chunks
    work = [(best.forward_share * seconds, (1 - best.forward_share) * seconds) for seconds in times]
    passes = timeline(work, stages, shown, best.layout.eager_forwards)
    scale = (_WIDTH - _LEFT) / max(one.end for one in passes)
    blocks = [int(count) for count in str(answer.rows[0]["partition"]).split("-")]
    return {
        "note": f"{'All' if shown == all_of_them else f'{shown} of {all_of_them}'} micro-batches of a step.",
        "left": _LEFT,
        "width": _WIDTH,
        "height": _ROW * len(best.stage_seconds),
        "rows": [
            {"y": _ROW * stage, "label": f"stage {stage}, {sum(blocks[stage::stages])} blocks"}
            for stage in range(stages)
        ],
        "passes": [
            {
                "kind": "forward" if one.is_forward else "backward",
                "x": round(_LEFT + one.begin * scale, 2),
                "y": _ROW * one.stage,
                "width": round((one.end - one.begin) * scale, 2),
                "number": one.micro_batch,
                "title": f"micro-batch {one.micro_batch}, {1000 * one.begin:.1f} to {1000 * one.end:.1f} ms",
            }
            for one in passes
        ],
    }


def _bars(answer: Answer) -> dict[str, Any]:
    scale = (_WIDTH - _LEFT) / max(row["seconds"] for row in answer.rows)
    rows = []
    for number, row in enumerate(answer.rows):
        at, parts = float(_LEFT), []
        for name, seconds in row["parts"].items():
            width = max(0.0, seconds) * scale
            title = f"{name}: {1000 * seconds:.1f} ms"
            parts.append(
                {"x": round(at, 2), "width": round(width, 2), "colour": _COLOURS[name], "title": title}
            )
            at += width
        label = f"{row['tensor']} x {row['data']} x {row['pipeline']}, mb {row['micro_batch']}"
        label += f", ep {row['expert']}" if answer.job.spec.experts else ""
        label += f", cp {row['context']}" if row["context"] > 1 else ""
        rows.append({"y": _ROW * number, "label": label, "parts": parts})
    return {"height": _ROW * len(rows), "rows": rows}


def _front(answer: Answer) -> dict[str, Any] | None:
    if not answer.front:
        return None
    points = [
        (
            point.estimate.seconds,
            1000 * point.cost,
            " + ".join(f"{n} x {gpu}" for gpu, n in point.nodes.items()),
        )
        for point, _row in answer.front
    ]
    x_at = _axis([seconds for seconds, _, _ in points], 90, 960)
    y_at = _axis([cost for _, cost, _ in points], 240, 30)
    placed = [(round(x_at(x), 1), round(y_at(y), 1), label) for x, y, label in points]
    return {
        "unit": "GPU-hours" if answer.front[0][0].price is None else "price",
        "points": placed,
        "line": " ".join(f"{x},{y}" for x, y, _ in placed),
        "x_ticks": [(x, f"{value:.3g}") for (x, _, _), (value, _, _) in zip(placed, points, strict=True)],
        "y_ticks": [(y, f"{value:,.3g}") for (_, y, _), (_, value, _) in zip(placed, points, strict=True)],
    }


def _axis(values: Sequence[float], first: float, last: float) -> Any:
    """Return a function that maps a value to its position between two ends of a picture."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return lambda value: first + (value - low) / span * (last - first)


def _cells(row: Any) -> list[tuple[Any, str]]:
    """Return the value and the text of each column."""
    mfu, bubble = row["mfu"], row["parts"]["bubble"] / row["seconds"]
    degrees = ("tensor", "data", "pipeline", "virtual_pipeline", "expert", "context")
    return [
        (row["seconds"], f"{row['seconds']:.3f}"),
        (row["tokens_per_second"], f"{row['tokens_per_second']:,.0f}"),
        ("" if mfu is None else mfu, "" if mfu is None else f"{100 * mfu:.1f}"),
        *((row[name], str(row[name])) for name in (*degrees, "micro_batch", "zero_stage", "eager_forwards")),
        (int(row["checkpointing"]), "full" if row["checkpointing"] else ""),
        (row["memory_gib"], f"{row['memory_gib']:.1f}"),
        (bubble, f"{100 * bubble:.0f}"),
        (row["partition"], str(row["partition"])),
    ]
