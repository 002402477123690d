# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs → one self-contained HTML file: the answers at the top, then the plots, then the tables."""

from __future__ import annotations

import html
import importlib.resources
import itertools
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rdm_log.errors import Finding
from rdm_log.report.configuration import differences
from rdm_log.report.curves import MFU, TFLOPS, TGS, token_rate
from rdm_log.report.drawing import DASHES, JOB_COLOURS
from rdm_log.report.job import Job, timeline_of
from rdm_log.report.machines import devices_word
from rdm_log.report.plots import plots
from rdm_log.timeline import bubble

_SIGNS = {
    "healthy": ("good", "✓"),
    "finished": ("good", "✓"),
    "starting": ("calm", "…"),
    "stalled": ("warn", "!"),
    "suspect": ("warn", "!"),
    "failed": ("bad", "✕"),
}
_TIMERS = 12
_EVIDENCE = 6


def page(jobs: Sequence[Job], *, title: str = "", made: str = "") -> str:
    """Return the page.

    Args:
        jobs: One job, or several to compare.
        title: Its title; by default the jobs' names.
        made: When and from what it was made; shown at its end.
    """
    title = title or " and ".join(job.name for job in jobs)
    drawn = plots(jobs)
    narrow = [plot for plot in drawn if not plot["wide"]]
    if len(narrow) % 2:
        # Narrow plots come in pairs.
        narrow[-1]["wide"] = True
    body = [f"<h1>{_text(title)}</h1>" if len(jobs) > 1 else ""]
    body += [_head(job, jobs) for job in jobs]
    body.append(_tiles(jobs[0]) if len(jobs) == 1 else _comparison(jobs))
    if len(jobs) > 1:
        body.append(_differences(jobs))
    body.append('<section class="plots">' + "".join(_frame(plot) for plot in drawn) + "</section>")
    for job in jobs:
        which = f" of {job.name}" if len(jobs) > 1 else ""
        body += [_runs(job, which), _timers(job, which), _nodes(job, which), _plan(job, which)]
        body.append(_table(f"Configuration{which}", ["key", "value"], sorted(job.configuration.items())))
    assets = importlib.resources.files(__package__) / "assets"
    data = json.dumps(drawn, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return _TEMPLATE.format(
        title=_text(title),
        style=(assets / "report.css").read_text("utf-8"),
        body="\n".join(part for part in body if part),
        made=_text(made),
        # No text of a log can close the script element.
        data=data.replace("<", "\\u003c"),
        library=(assets / "plotly-cartesian.min.js").read_text("utf-8"),
        script=(assets / "report.js").read_text("utf-8"),
    )


# The policy forbids the page to fetch anything. Plotly itself generates the images of heat maps.
_TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; \
style-src 'unsafe-inline'; img-src data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
<footer>{made}</footer>
</main>
<script type="application/json" id="plots">{data}</script>
<script>{library}</script>
<script>
{script}</script>
</body>
</html>
"""


def _text(value: Any) -> str:
    return html.escape(str(value))


def _frame(plot: Mapping[str, Any]) -> str:
    classes = "plot wide" if plot["wide"] else "plot"
    note = f"<p>{_text(plot['note'])}</p>" if plot["note"] else ""
    return (
        f'<figure class="{classes}" id="{plot["id"]}"><figcaption><h2>{_text(plot["title"])}</h2>'
        f'<div class="controls"></div></figcaption>{note}<div class="drawing"></div></figure>'
    )


# The answers.


def _head(job: Job, jobs: Sequence[Job]) -> str:
    found = job.verdict()
    kind, sign = _SIGNS[found.word]
    name = "h1" if len(jobs) == 1 else "h2"
    key = f"{_key(jobs.index(job))} " if len(jobs) > 1 else ""
    more = "".join(f"<li>{_text(one)}</li>" for one in found.evidence[1:_EVIDENCE])
    events = "".join(f'<li class="{kind}">{_text(text)}</li>' for kind, text in _events(job))
    return (
        f'<header class="{kind}"><{name}>{key}{_text(job.name)}</{name}>'
        f'<p class="verdict"><strong><span aria-hidden="true">{sign}</span> {found.word}</strong>'
        f" {_text(found.reason)}</p>"
        f"{f'<ul>{more}</ul>' if more else ''}{f'<ul class=events>{events}</ul>' if events else ''}</header>"
    )


def _key(number: int) -> str:
    """Return a sample of a job's line in the plots."""
    colour = JOB_COLOURS[number % len(JOB_COLOURS)]
    dash = {"solid": "", "dash": "9 5", "dot": "2 4"}.get(DASHES[number % len(DASHES)], "9 4 2 4")
    return (
        f'<svg class="key" viewBox="0 0 34 10" aria-hidden="true"><path d="M1 5h32" stroke="{colour}"'
        f' stroke-width="4" stroke-dasharray="{dash}"/></svg>'
    )


def _events(job: Job) -> Iterator[tuple[str, str]]:
    """Yield events besides the steps: a kind for the colour, and a sentence."""
    for failure in job.failures:
        rank = f", rank {failure['rank']}" if failure.get("rank") is not None else ""
        yield "bad", f"{failure.get('node', '')}{rank}: {failure.get('reason', '')}"
    runs = [run for run in job.runs if run["lines"]]
    for earlier, run in itertools.pairwise(runs):
        start = run["loaded_checkpoint"]
        source = f"from checkpoint {start:,}" if start else f"at step {run['first_iteration']:,}"
        again = earlier["last_iteration"] - run["first_iteration"] + 1
        lost = f"; {again:,} steps were taken again" if again > 0 else ""
        when = f" at {run['first_time']}" if run["first_time"] else ""
        yield "warn", f"Restarted {source}{when}{lost}."
    hidden = job.restarts - max(0, len(runs) - 1)
    if hidden > 0:
        times = "once" if hidden == 1 else f"{hidden} times"
        yield "warn", f"Restarted {times} without a line of a step between."
    saved = [iteration for run in runs for iteration in run["checkpoints"]]
    if saved:
        number = f"{len(saved)} checkpoints, the last" if len(saved) > 1 else "Checkpoint"
        yield "good", f"{number} at step {saved[-1]:,}."
    yield from _warnings(job.seen.findings)
    for note in job.notes:
        yield "calm", note


def _warnings(found: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    """Yield each kind of warning once, with its count over all nodes."""
    first: dict[str, Finding] = {}
    counts: Counter[str] = Counter()
    for one in found:
        if one.kind == "warning":
            first.setdefault(one.name, one)
            counts[one.name] += one.count
    for name, one in first.items():
        many = f", {counts[name]:,} times" if counts[name] > 1 else ""
        yield "calm", f"{one.cause[:1].upper()}{one.cause[1:]}{many}: {one.line[:160]}"


def _figures(job: Job) -> Iterator[tuple[str, str, str]]:
    """Yield the figures of a job: a label, the value, and further text."""
    run = job.run
    if run is None:
        return
    total = run["train_iterations"]
    done = f"of {total:,} ({100 * run['last_iteration'] / total:.0f} %)" if total else ""
    yield "Step", f"{run['last_iteration']:,}", done
    loss, since = run["loss"], run["loss"].get("not_finite_at")
    if loss["last"] is not None:
        first = next(one["loss"]["first"] for one in job.runs if one["loss"]["first"] is not None)
        lowest = f", lowest {loss['lowest']:.4g} at {loss['lowest_at']:,}"
        if since and loss["curve"][-1][0] < since:
            yield loss["name"], "NaN", f"since {since:,}; {loss['last']:.4f} before, from {first:.4g}{lowest}"
        else:
            last = loss["curve"][-1][0]
            when = f"at step {last:,}, " if last < run["last_iteration"] else ""
            yield loss["name"], f"{loss['last']:.4f}", f"{when}from {first:.4g}{lowest}"
    elif since:
        yield loss["name"], "NaN", f"since {since:,}"
    step = run["step_ms"]
    if step["median"] is not None:
        p95 = f"95 % below {_time(step['p95'])}" if step["p95"] is not None else ""
        yield "Time of a step", _time(step["median"]), p95
    tokens, tokens_until = _newest(run, "tokens_per_gpu_per_second", TGS)
    mfu, mfu_until = _newest(run, "mfu_percent", *MFU)
    rate, rate_until = _newest(run, "tflops", *TFLOPS)
    if tokens is not None:
        whole = f"{run['tokens_per_second']:,.0f} in all" if run["tokens_per_second"] else ""
        yield "Tokens/s per GPU", f"{tokens:,.0f}", tokens_until or whole
    elif run["samples_per_second"] is not None:
        factor, unit = token_rate(job, run)
        yield unit.capitalize(), _count(run["samples_per_second"] * factor), ""
    if mfu:
        more = f"{rate:.1f} TFLOP/s per GPU" if rate is not None and rate_until == mfu_until else ""
        yield "MFU", f"{mfu:.1f} %", ", ".join(filter(None, (mfu_until, more)))
    elif rate:
        yield "TFLOP/s per GPU", f"{rate:.1f}", rate_until
    memory = {
        rank: max(sizes.get("max reserved", 0.0), sizes.get("max allocated", 0.0))
        for one in job.runs
        for rank, sizes in one["memory_mib"].items()
    }
    if any(memory.values()):
        rank = max(memory, key=lambda one: memory[one])
        yield (
            "Most memory",
            f"{memory[rank] / 1024:.1f} GiB",
            f"rank {rank} of {len(memory)} that reported it",
        )
    busy = [
        value
        for history in job.devices.values()
        for gpu in history["gpus"].values()
        for value in gpu.get("utilisation", ())
        if value is not None
    ]
    if busy:
        nodes = f"{len(job.devices)} node{'s' * (len(job.devices) > 1)}"
        yield f"{devices_word(job)} busy", f"{statistics.fmean(busy):.0f} %", nodes
    if job.timeline is not None and (share := bubble(timeline_of(job.timeline))) is not None:
        yield "Pipeline bubble", f"{100 * share:.0f} %", "of the passes' time"
    slow = sum(len(one["step_ms"]["outliers"]) for one in job.runs)
    yield "Slow steps", f"{slow}{' or more' if slow >= 20 else ''}", "1.5 times the median and longer"
    skipped, nan = (sum(one[key] for one in job.runs) for key in ("skipped", "nan"))
    if skipped or nan:
        yield "Skipped, NaN", f"{skipped:,} and {nan:,}", "steps"
    if job.restarts:
        yield "Restarts", f"{job.restarts}", ""


def _newest(run: Mapping[str, Any], key: str, *fields: str) -> tuple[float | None, str]:
    """Return a figure of the last step, or else its last known value and a text with that value's step."""
    if run[key] is not None:
        return float(run[key]), ""
    series = run.get("series") or {}
    newest = [points[-1] for name in fields if (points := series.get(name))]
    if not newest:
        return None, ""
    step, value, *_ = max(newest)
    return value, f"reported until step {step:,.0f}"


def _count(value: float) -> str:
    """Return a number with four significant digits, or as a whole number: 45.77, 637,600."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1000:,.2f} s" if milliseconds >= 1000 else f"{milliseconds:,.1f} ms"


def _tiles(job: Job) -> str:
    tiles = "".join(
        f"<div><dt>{_text(label)}</dt><dd>{_text(value)}<small>{_text(more)}</small></dd></div>"
        for label, value, more in _figures(job)
    )
    return f'<dl class="tiles">{tiles}</dl>' if tiles else ""


def _comparison(jobs: Sequence[Job]) -> str:
    by_job = [{label: (value, more) for label, value, more in _figures(job)} for job in jobs]
    labels = dict.fromkeys(label for figures in by_job for label in figures)
    rows = [
        [label, *(" · ".join(filter(None, figures.get(label, ("", "")))) for figures in by_job)]
        for label in labels
    ]
    return _table("Side by side", ["", *(job.name for job in jobs)], rows, open_=True)


# The tables.


def _differences(jobs: Sequence[Job]) -> str:
    if not any(job.configuration for job in jobs):
        return ""
    found = differences([job.configuration for job in jobs])
    if not found:
        return "<p>Their configurations are the same.</p>"
    rows = [[key, *("not set" if value is None else value for value in found[key])] for key in sorted(found)]
    return _table("What differs in their configurations", ["", *(job.name for job in jobs)], rows, open_=True)


def _runs(job: Job, which: str) -> str:
    runs = [run for run in job.runs if run["lines"]]
    if len(runs) < 2:
        return ""
    rows = [
        [
            number,
            f"{run['first_iteration']:,} to {run['last_iteration']:,}",
            " to ".join(dict.fromkeys(filter(None, (run["first_time"], run["last_time"])))),
            "" if run["loss"]["last"] is None else f"{run['loss']['last']:.4f}",
            "" if run["step_ms"]["median"] is None else _time(run["step_ms"]["median"]),
            run["file"],
        ]
        for number, run in enumerate(runs, 1)
    ]
    return _table(f"Runs{which}", ["", "steps", "time", "last loss", "time of a step", "file"], rows)


def _timers(job: Job, which: str) -> str:
    run = job.run
    if run is None or not run["timers"]:
        return ""
    longest = sorted(run["timers"], key=lambda timer: timer["mean_ms"], reverse=True)[:_TIMERS]
    rows = [
        [
            timer["name"],
            f"{timer['count']:,}",
            f"{timer['mean_ms']:,.2f}",
            f"{timer['longest_ms']:,.2f}",
            ""
            if timer["slowest_rank"] is None
            else f"{timer['slowest_rank']} ({timer['slowest_rank_mean_ms']:,.2f})",
        ]
        for timer in longest
    ]
    return _table(f"Longest timers{which}", ["", "times", "mean ms", "longest ms", "slowest rank"], rows)


def _nodes(job: Job, which: str) -> str:
    rows, rank = [], 0
    for node in job.nodes:
        slots = int(node.get("slots", 0))
        ranks = f"{rank} to {rank + slots - 1}" if slots > 1 else f"{rank}"
        rows.append([node.get("name", ""), node.get("address", ""), ranks])
        rank += slots
    return _table(f"Nodes{which}, by their addresses on the fabric", ["node", "address", "ranks"], rows)


def _plan(job: Job, which: str) -> str:
    """Return the addresses of all nodes of the cluster, even those that the job does not use."""
    plan = job.plan or {}
    nodes = plan.get("nodes") or {}
    rails = {name: [_rail(one) for one in node.get("rails") or ()] for name, node in nodes.items()}
    most = max(map(len, rails.values()), default=0)
    rows = [
        [
            name,
            *(node.get(key, "") for key in ("rank", "address", "my_ip")),
            *(rails[name] + [""] * most)[:most],
        ]
        for name, node in nodes.items()
    ]
    gateway = f"gateway {plan['gateway']}" if plan.get("gateway") else ""
    network = ", ".join(filter(None, (str(plan.get("subnet") or ""), gateway)))
    title = f"Address plan of the cluster{which}{f': {network}' if network else ''}"
    return _table(
        title, ["node", "rank", "ssh address", "MY_IP", *(f"rail {n + 1}" for n in range(most))], rows
    )


def _rail(rail: Mapping[str, Any]) -> str:
    address, parent, network, subnet = (rail.get(key, "") for key in ("my_ip", "parent", "network", "subnet"))
    return f"{address} on {parent} ({network}, {subnet})"


def _table(title: str, names: Sequence[str], rows: Iterable[Sequence[Any]], *, open_: bool = False) -> str:
    body = "".join(
        "<tr>"
        + f'<th scope="row">{_text(first)}</th>'
        + "".join(f"<td>{_text(cell)}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    if not body:
        return ""
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in names)
    return (
        f"<details{' open' if open_ else ''}><summary>{_text(title)}</summary><div class=table>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )
