# SPDX-License-Identifier: GPL-3.0-or-later
"""Plots about ranks, nodes and GPUs: memory, GPUs over time, times and bandwidths between nodes."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rdm_log.report.devices import MEASURES
from rdm_log.report.drawing import BARS, Plot, colour_of, plot, short
from rdm_log.report.job import Job

_MARKED = 16
"""Up to this many ranks, each has a tick."""
_BARS_WIDE = 6
"""Bars are at most as wide as with this many ranks."""
_READABLE = 8
"""Up to this many nodes, the matrix shows the values as text."""
_UNLIKE = 1.5
"""A link that is this many times worse than the median is named."""
_GPU_ROWS = 96
"""Up to this many GPUs, each has a row of the heat map; with more, each node has one."""


def memory(jobs: Sequence[Job]) -> Plot | None:
    """Return the plot of each rank's peak memory."""
    data: list[dict[str, Any]] = []
    for number, job in enumerate(jobs):
        by_rank: dict[int, Mapping[str, float]] = {}
        for run in job.runs:
            by_rank |= {int(rank): sizes for rank, sizes in run["memory_mib"].items()}
        ranks = sorted(by_rank)
        for name, opacity in (("max allocated", 1.0), ("max reserved", 0.45)):
            sizes = [short(by_rank[rank].get(name, 0.0) / 1024) for rank in ranks]
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
            if len(ranks) > BARS:
                data.append(
                    {"type": "scatter", "mode": "lines", "line": {"color": colour_of(number)}, **common}
                )
            else:
                data.append({"type": "bar", "marker": {"color": colour_of(number)}, **common})
    layout = {
        "xaxis": {"title": {"text": "rank"}, **(_few(data[0]["x"]) if data else {})},
        "yaxis": {"title": {"text": "GiB"}, "rangemode": "tozero"},
        "barmode": "group",
    }
    return plot("memory", "Memory per rank", data, layout, note="The most that each rank had at any time.")


def _few(ranks: Sequence[int]) -> dict[str, Any]:
    """Return an axis with a tick for each of few ranks, and with bars that are not too wide."""
    if len(ranks) > _MARKED:
        return {}
    middle, reach = (ranks[0] + ranks[-1]) / 2, max(_BARS_WIDE, ranks[-1] - ranks[0] + 1) / 2
    return {"tickvals": list(ranks), "range": [middle - reach, middle + reach]}


def devices_word(job: Job) -> str:
    """Return a word for a job's devices: without GPUs, its agents report processors."""
    names = [str(history["name"]) for history in job.devices.values()]
    return "Processors" if names and all(name.endswith("CPU cores") for name in names) else "GPUs"


def devices(job: Job, number: int, which: str) -> Plot | None:
    """Return the heat map over nodes and time, with a variant for each measure."""
    if not job.devices:
        return None
    gpus = sum(len(history["gpus"]) for history in job.devices.values())
    columns = max(history["columns"] for history in job.devices.values())
    xaxis: dict[str, Any] = {"title": {"text": "part of the job's time in %"}}
    xs: list[Any] = [short(100 * column / max(1, columns - 1)) for column in range(columns)]
    spans = {node: _span_s(history["times"]) for node, history in job.devices.items() if history["times"]}
    # Use times only if all nodes have them.
    whole = None
    if len(spans) == len(job.devices):
        xaxis = {"title": {"text": "time"}}
        whole = min(begin for begin, _ in spans.values()), max(end for _, end in spans.values())
        xs = _moments(whole, columns)
    own_columns = {
        node: _own_columns(history["columns"], columns, spans.get(node), whole)
        for node, history in job.devices.items()
    }
    variants: list[dict[str, Any]] = []
    notes: list[str] = []
    for measure, (title, unit, highest) in MEASURES.items():
        rows = list(_device_rows(job, measure, highest, each=gpus <= _GPU_ROWS, own_columns=own_columns))
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
            # A category axis, because names may look like numbers or dates; the first is at the top.
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
            "height": max(220, min(900, 90 + 18 * len(rows))),
        }
        variants.append({"label": title, "data": [data], "layout": layout})
        notes += _remarkable(measure, rows)
    return plot(
        f"gpus{number}",
        f"{devices_word(job)}{which} over time",
        note=" ".join(notes),
        wide=True,
        variants=variants,
    )


def _span_s(times: Sequence[str]) -> tuple[float, float]:
    """Return the times of the first and the last record in seconds, read as UTC: they have no time zone."""
    utc = datetime.UTC
    first, last = (datetime.datetime.fromisoformat(one).replace(tzinfo=utc).timestamp() for one in times)
    return first, last


def _moments(whole: tuple[float, float], columns: int) -> list[str]:
    begin, end = (datetime.datetime.fromtimestamp(one, datetime.UTC).replace(tzinfo=None) for one in whole)
    return [
        (begin + (end - begin) * column / max(1, columns - 1)).isoformat(" ", "seconds")
        for column in range(columns)
    ]


def _own_columns(
    own: int, columns: int, span: tuple[float, float] | None, whole: tuple[float, float] | None
) -> list[int | None]:
    """Return the node's own column for each column of the plot; None where it has none."""
    if span is None or whole is None:
        return [column * own // columns for column in range(columns)]
    width = (whole[1] - whole[0]) / columns
    found: list[int | None] = []
    for column in range(columns):
        middle = whole[0] + (column + 0.5) * width
        # A node is also in the columns in which its records begin and end.
        if not span[0] - width / 2 <= middle <= span[1] + width / 2:
            found.append(None)
            continue
        position = (middle - span[0]) / max(span[1] - span[0], 1e-9) * own
        found.append(min(own - 1, max(0, int(position))))
    return found


def _device_rows(
    job: Job, measure: str, highest: bool, *, each: bool, own_columns: Mapping[str, Sequence[int | None]]
) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the rows of the heat map: a name and a value for each column."""
    for node, history in job.devices.items():
        own = [(gpu, values[measure]) for gpu, values in history["gpus"].items() if measure in values]
        if each:
            for gpu, values in own:
                yield (node if len(own) == 1 else f"{node}:{gpu}"), _resampled(values, own_columns[node])
        elif own:
            merged = [_merged(values, highest) for values in zip(*(v for _, v in own), strict=True)]
            yield node, _resampled(merged, own_columns[node])


def _resampled(values: Sequence[float | None], own_columns: Sequence[int | None]) -> list[float | None]:
    return [None if column is None else values[column] for column in own_columns]


def _merged(values: Iterable[float | None], highest: bool) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return max(known) if highest else sum(known) / len(known)


def _remarkable(measure: str, rows: Sequence[tuple[str, Sequence[float | None]]]) -> Iterator[str]:
    """Yield a note on an outlier among nodes or GPUs, which is hard to see among a thousand rows."""
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


def fabric(job: Job, number: int, which: str) -> Plot | None:
    """Return the matrix of round-trip times between nodes."""
    if job.fabric is None or not job.fabric["rtt_us"]:
        return None
    nodes = list(job.fabric.get("nodes") or job.fabric["rtt_us"])
    title = f"Round-trip times{which} between nodes"
    return _between(f"fabric{number}", title, nodes, job.fabric["rtt_us"], "µs", worst=max)


def bandwidth(job: Job, number: int, which: str) -> Plot | None:
    """Return the matrix of RDMA bandwidths between nodes."""
    if job.rdma is None or not job.rdma["bandwidth_gbit"]:
        return None
    nodes = list(job.rdma.get("nodes") or job.rdma["bandwidth_gbit"])
    title = f"RDMA bandwidth{which} between nodes"
    return _between(f"bandwidth{number}", title, nodes, job.rdma["bandwidth_gbit"], "Gbit/s", worst=min)


def _between(
    name: str,
    title: str,
    nodes: Sequence[str],
    values: Mapping[str, Mapping[str, float]],
    unit: str,
    *,
    worst: Callable[[Iterable[float]], float],
) -> Plot | None:
    """Return a matrix of values between nodes, with a note on an outlier.

    Args:
        name: The plot's id in the page.
        title: The title above it.
        nodes: The nodes, in order.
        values: By source node, then by target node.
        unit: The unit of the values.
        worst: ``max`` if more is worse, otherwise ``min``.
    """
    links = {
        f"{one} to {other}": value
        for one, of_one in values.items()
        for other, value in of_one.items()
        if one != other and value
    }
    note = ""
    if len(links) > 2:
        value, median = worst(links.values()), statistics.median(links.values())
        if max(value, median) > _UNLIKE * min(value, median):
            link = next(link for link, known in links.items() if known == value)
            note = f"{link}: {value:.4g} {unit}, others {median:.4g}."
    data = {
        "type": "heatmap",
        "x": nodes,
        "y": nodes,
        "z": [[short(values.get(one, {}).get(other)) for other in nodes] for one in nodes],
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": unit}, "thickness": 12},
        "hoverongaps": False,
        "hovertemplate": f"%{{y}} to %{{x}}: %{{z}} {unit}<extra></extra>",
        **({"texttemplate": "%{z:.4~g}"} if len(nodes) <= _READABLE else {}),
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
    return plot(name, title, [data], layout, note=note)
