# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs → plotly's input, as plain data. Python decides what a plot shows; the script only draws it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rdm_log.report.curves import MFU, TFLOPS, curve, field, loss, speed, speed_note, step_time
from rdm_log.report.drawing import Plot
from rdm_log.report.gantt import gantt, shares
from rdm_log.report.job import Job
from rdm_log.report.machines import bandwidth, devices, fabric, memory

_Jobs = Sequence[Job]


def _work(jobs: _Jobs) -> Plot | None:
    """Return the plot `mfu`, the share of the devices' peak that is used, or else `tflops`."""
    return curve(jobs, "mfu", "Model FLOPs utilisation", field(*MFU), positive=True) or curve(
        jobs, "tflops", "TFLOP/s per GPU", field(*TFLOPS), positive=True
    )


OF_ALL_JOBS: Mapping[str, Callable[[_Jobs], Plot | None]] = {
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
"""Plots of all jobs of a page, by id, in the page's order. For the ids of `work`, see ``_work``."""
OF_EACH_JOB: Mapping[str, Callable[[Job, int, str], Plot | None]] = {
    "timeline": gantt,
    "shares": shares,
    "gpus": devices,
    "fabric": fabric,
    "bandwidth": bandwidth,
}
"""Plots of a single job. The job's number is appended to the id."""


def plots(jobs: _Jobs) -> list[Plot]:
    """Return the plots of a page in its order, without those that have no data."""
    found = [draw(jobs) for draw in OF_ALL_JOBS.values()]
    for number, job in enumerate(jobs):
        which = f" of {job.name}" if len(jobs) > 1 else ""
        found += [draw(job, number, which) for draw in OF_EACH_JOB.values()]
    return [plot for plot in found if plot is not None]
