# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs → what plotly draws, as plain data. What a plot shows is decided in Python; the script only draws."""

from __future__ import annotations

from collections.abc import Sequence

from rdm_log.report.curves import MFU, TFLOPS, curve, field, loss, speed, speed_note, step_time
from rdm_log.report.drawing import Plot
from rdm_log.report.gantt import gantt, shares
from rdm_log.report.job import Job
from rdm_log.report.machines import bandwidth, devices, fabric, memory

__all__ = ["plots"]


def plots(jobs: Sequence[Job]) -> list[Plot]:
    """Return the plots of a page about some jobs, in its order; those without data are left out."""
    found = [
        loss(jobs),
        step_time(jobs),
        curve(jobs, "speed", "Speed", speed(jobs), note=speed_note(jobs)),
        curve(jobs, "mfu", "Model FLOPs utilisation", field(*MFU), positive=True)
        or curve(jobs, "tflops", "TFLOP/s per GPU", field(*TFLOPS), positive=True),
        curve(jobs, "lr", "Learning rate", field("learning rate"), ticks=".1e"),
        curve(jobs, "gradnorm", "Gradient norm", field("grad norm"), controls=("log", "smooth"), band=True),
        curve(jobs, "lossscale", "Loss scale", field("loss scale"), controls=("log",), varying=True),
        memory(jobs),
    ]
    for number, job in enumerate(jobs):
        which = f" of {job.name}" if len(jobs) > 1 else ""
        found += [gantt(job, number, which), shares(job, number, which)]
        found += [devices(job, number, which), fabric(job, number, which), bandwidth(job, number, which)]
    return [plot for plot in found if plot is not None]
