# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which jobs are old enough to remove their directories. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rdm_provision.constants import FINAL_STATES
from rdm_provision.errors import InputError
from rdm_provision.results.job_state import JobState

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


@dataclass(frozen=True)
class Removal:
    """A job's directory on a node that was removed, or would be.

    Attributes:
        job: the job.
        node: the node.
        bytes: the directory's size on the disk.
        reason: why it was kept; empty if it was not.
    """

    job: str
    node: str
    bytes: int
    reason: str = ""


def age(text: str) -> float:
    """Return an age in seconds.

    Raises:
        InputError: the text is no age.

    >>> age("2w")
    1209600.0
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([mhdw])", text.strip())
    if found is None:
        raise InputError(f"{text!r} is no age", hint="give minutes, hours, days or weeks: 90m, 12h, 30d, 2w")
    return float(found[1]) * _UNITS[found[2]]


def prunable(jobs: Iterable[JobState], older: float, now: float) -> tuple[JobState, ...]:
    """Return the jobs that ended long ago, the oldest first.

    Args:
        jobs: as their masters report them.
        older: how long ago at least, in seconds.
        now: seconds since 1970.
    """
    found = [(end, job) for job in jobs if (end := ended(job)) is not None and now - end >= older]
    return tuple(job for _, job in sorted(found, key=lambda one: one[0]))


def ended(job: JobState) -> float | None:
    """Return when a job ended, in seconds since 1970; None if it has not, or that is unknown."""
    if job.state not in FINAL_STATES or job.started is None or job.seconds is None:
        return None
    return job.started + job.seconds
