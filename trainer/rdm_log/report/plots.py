# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs → what plotly draws, as plain data. What a plot shows is decided in Python; the script only draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rdm_log.report.curves import MFU, TFLOPS, curve, field, loss, speed, speed_note, step_time
from rdm_log.report.drawing import Plot
from rdm_log.report.gantt import gantt, shares
from rdm_log.report.job import Job
from rdm_log.report.machines import bandwidth, devices, fabric, memory

__all__ = ["OF_ALL_JOBS", "OF_EACH_JOB", "plots"]

Jobs = Sequence[Job]


def _work(jobs: Jobs) -> Plot | None:
    """Return the plot `mfu`, the share that devices do of what they could, or else `tflops`, what they do."""
    return curve(jobs, "mfu", "Model FLOPs utilisation", field(*MFU), positive=True) or curve(
        jobs, "tflops", "TFLOP/s per GPU", field(*TFLOPS), positive=True
    )


OF_ALL_JOBS: Mapping[str, Callable[[Jobs], Plot | None]] = {
    "loss": loss,
    "steptime": step_time,
    "speed": lambda jobs: curve(jobs, "speed", "Speed", speed(jobs), note=speed_note(jobs)),
    "work": _work,
    "lr": lambda jobs: curve(jobs, "lr", "Learning rate", field("learning rate"), ticks=".1e"),
    "gradnorm": lambda jobs: curve(
        jobs, "gradnorm", "Gradient norm", field("grad norm"), controls=("log", "smooth"), band=True
    ),
    "lossscale": lambda jobs: curve(
        jobs, "lossscale", "Loss scale", field("loss scale"), controls=("log",), varying=True
    ),
    "memory": memory,
}
"""Plots in which all jobs of a page are, by their id (`work`: see there), in the page's order."""
OF_EACH_JOB: Mapping[str, Callable[[Job, int, str], Plot | None]] = {
    "timeline": gantt,
    "shares": shares,
    "gpus": devices,
    "fabric": fabric,
    "bandwidth": bandwidth,
}
"""Those that each job has of its own; behind their id stands the job's number."""


def plots(jobs: Jobs) -> list[Plot]:
    """Return the plots of a page about some jobs, in its order; those without data are left out."""
    found = [draw(jobs) for draw in OF_ALL_JOBS.values()]
    for number, job in enumerate(jobs):
        which = f" of {job.name}" if len(jobs) > 1 else ""
        found += [draw(job, number, which) for draw in OF_EACH_JOB.values()]
    return [plot for plot in found if plot is not None]
