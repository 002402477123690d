# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of a job → a summary of its runs, as plain data."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdm_core.errors import TrainerError
from rdm_core.progress import finite
from rdm_log.figures import quantile
from rdm_log.heads import head, steps_of
from rdm_log.merge import merged
from rdm_log.records import SKIPPED
from rdm_log.runs import Run, runs
from rdm_log.scan import pieces, read, records, regular
from rdm_log.wording import listed

_OUTLIER = 1.5
"""A step is an outlier when it takes longer than this multiple of the median."""
_TOKENS = "tokens per gpu per second (tgs)"
_TFLOPS = ("TFLOPs", "throughput per GPU (TFLOP/s/GPU)")


_LOGS = (".out", ".err", ".gpu", ".gpu.jsonl")
"""The suffixes of a node's files."""
_UTF_16 = ("in UTF-16", "iconv -f UTF-16 -t UTF-8")
_ENCODED = {
    b"\x1f\x8b": ("compressed", "zcat"),
    b"\x28\xb5\x2f\xfd": ("compressed", "zstdcat"),
    b"\xfd7zX": ("compressed", "xzcat"),
    b"BZh": ("compressed", "bzcat"),
    b"\xff\xfe": _UTF_16,
    b"\xfe\xff": _UTF_16,
}
"""How files begin that are not plain text → what they are, and the command that prints them as text."""


class NothingToRead(TrainerError):  # noqa: N818  # the fault is the input's
    """The input has no training in it; the message says what was found instead."""


@dataclass(frozen=True)
class Summary:
    """The summary of one job's files.

    Attributes:
        files: The files that were read.
        restarts: How often the job restarted.
        runs: Its runs in order, as plain data without NaN; see docs/reading-logs.md.
    """

    files: tuple[str, ...]
    restarts: int
    runs: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"files": list(self.files), "restarts": self.restarts, "runs": list(self.runs)}


def newest_run(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the newest run of a summary that has steps."""
    return next((run for run in reversed(runs) if run["lines"]), None)


def check_readable(path: Path) -> None:
    """Check that a path is accessible, and that a directory can be listed.

    Raises:
        NothingToRead: It is not.
    """
    try:
        if path.is_dir():
            next(path.iterdir(), None)
    except OSError as error:
        raise NothingToRead(f"{error.filename or path} cannot be read: {error.strerror}.") from error


def log_files(path: Path) -> list[Path]:
    """Return the files that a path stands for: itself, or the ``.out`` files of a directory.

    A job's directory has them in ``logs/``.

    Raises:
        NothingToRead: There is none.
    """
    check_readable(path)
    try:
        if not path.is_dir():
            # This also raises for a path that exists, but that stat cannot read.
            return [regular(path)]
        for directory in (path / "logs", path):
            # Unlike glob, iterdir raises for a directory that cannot be read.
            entries = sorted(directory.iterdir()) if directory.is_dir() else []
            found = [one for one in entries if fnmatch.fnmatch(one.name, "*.out*") and one.is_file()]
            if found:
                return found
    except FileNotFoundError:
        raise NothingToRead(f"There is no file {path}.") from None
    except OSError as error:
        why = str(error.strerror)
        if error.errno == errno.EINVAL:
            raise NothingToRead(f"{path} {why}, which may never end: write what it says to a file.") from None
        raise NothingToRead(f"{error.filename or path} cannot be read: {why}.") from error
    names = [one.name for one in entries]
    listing = f"it has {listed(names, 5)}" if names else "it is empty"
    advice = "give a directory with NODE.out, or a file with what the training printed"
    raise NothingToRead(f"{path} has no .out files: {listing}; {advice}.")


def unreadable_logs(folder: Path, node: str = "", *others: Path) -> list[str]:
    """Return the files of a directory that cannot be read, each with the reason, as a clause.

    Args:
        folder: The directory of the logs.
        node: Check only this node's files; by default all nodes'.
        others: Further files to check, which may be absent.
    """
    names = glob.escape(node) or "*"
    logs = [one for ending in _LOGS for one in sorted(folder.glob(f"{names}{ending}"))]
    there = (one for one in (*logs, *others) if one.is_symlink() or one.exists())
    return [f"{one.name} {why}" for one in there if (why := _why_unreadable(one))]


def _why_unreadable(file: Path) -> str:
    """Return why a file cannot be read; empty if it can."""
    try:
        regular(file).open("rb").close()
    except FileNotFoundError:
        return "is a link to nothing"
    except OSError as error:
        is_kind = error.errno == errno.EINVAL
        return str(error.strerror) if is_kind else f"cannot be read ({error.strerror})"
    return ""


def summarise(paths: Sequence[Path], *, series: bool = False, needs_steps: bool = True) -> Summary:
    """Read the files of one job and return their summary.

    Args:
        paths: Files, or directories with ``.out`` files.
        series: Add ``series`` and ``checkpoints`` to each run, for plots.
        needs_steps: Files without any step are an error. A single node's files may well have none.

    Raises:
        NothingToRead: A file is missing or cannot be read, or there is no training in the files.
    """
    files = [file for path in paths for file in log_files(path)]
    logs: list[list[Run]] = []
    for group in pieces(files):
        try:
            found = runs(records(read(group)), group[-1].name, series=series)
            if any(run.lines and not run.train_iterations for run in found):
                _add_steps(found, group[0])
            logs.append(found)
        except OSError as error:
            raise NothingToRead(f"{error.filename or group[-1]} cannot be read: {error.strerror}.") from error
    found = merged(logs)
    if needs_steps and not any(run.lines for run in found):
        raise NothingToRead(_nothing(files, found))
    restarts = max(1, len(found), *map(len, logs)) - 1
    return Summary(tuple(map(str, files)), restarts, tuple(map(plain, found)))


def _add_steps(found: Sequence[Run], file: Path) -> None:
    """Add the total number of steps to a log's runs, if only the head of the log has it."""
    with contextlib.suppress(OSError):
        steps = steps_of(head(file))
        for run in found:
            run.train_iterations = run.train_iterations or max(steps, run.last_iteration) * bool(steps)


def _nothing(files: Sequence[Path], found_runs: Sequence[Run]) -> str:
    """Return a sentence about what was found instead of training lines."""
    where = str(files[0]) if len(files) == 1 else f"The {len(files)} files"
    size = sum(file.stat().st_size for file in files if file.exists())
    verb = "has" if len(files) == 1 else "have"
    if not size:
        return f"{where} {'is' if len(files) == 1 else 'are'} empty."
    for file in files:
        with file.open("rb") as log:
            begins = log.read(4)
        for mark, (what, how) in _ENCODED.items():
            if begins.startswith(mark):
                return f"{file} is {what}: write it out as text first, with `{how}`."
    milestones = [name for run in found_runs for name in run.milestones]
    found = f"{size:,} bytes"
    if milestones:
        found += f", of a training that came to {milestones[-1]!r}"
    elif found_runs:
        found += " with memory or timers, but without steps"
    return f"{where} {verb} no line ` iteration N/M |` of a training: found {found}."


def plain(run: Run) -> dict[str, Any]:
    """Return a run as plain data."""
    times = run.times.ordered()
    median = quantile(times, 0.5) if times else run.first_milliseconds
    last = run.newest_values
    batch = last.get("global batch size")
    samples = last.get("samples per second")
    if batch and median:
        samples = batch * 1000.0 / median
    sequence = _sequence(run)
    data: dict[str, Any] = {
        "file": run.file,
        "lines": run.lines,
        "is_torn": run.is_torn,
        "first_iteration": run.first_iteration,
        "last_iteration": run.last_iteration,
        "train_iterations": run.train_iterations,
        "first_time": run.first_time or None,
        "last_time": run.last_time or None,
        "loaded_checkpoint": run.loaded,
        "saved_checkpoint": run.saved,
        "loss": {
            "name": run.loss.name,
            "first": run.loss.first,
            "last": run.loss.last,
            "lowest": run.loss.lowest,
            "lowest_at": run.loss.lowest_at,
            "not_finite": run.loss.not_finite,
            "not_finite_at": run.loss.not_finite_at or None,
            "curve": [list(point) for point in run.loss.curve.points()],
        },
        "step_ms": {
            "first": run.first_milliseconds,
            "median": median,
            "p95": quantile(times, 0.95) if times else None,
            "recent": list(run.recent_times),
            "outliers": [
                [iteration, time]
                for time, iteration in run.slowest.ordered()
                if median and time > _OUTLIER * median
            ],
        },
        "global_batch_size": batch,
        "samples_per_second": samples,
        "tokens_per_second": samples * sequence if samples and sequence else None,
        "tokens_per_gpu_per_second": last.get(_TOKENS),
        "tflops": next((last[name] for name in _TFLOPS if name in last), None),
        "mfu_percent": last.get("MFU (%)"),
        "learning_rate": last.get("learning rate"),
        "grad_norm": {"last": last.get("grad norm"), "highest": run.highest_grad_norm},
        "loss_scale": last.get("loss scale"),
        "skipped": _count(_skipped(run)),
        "nan": _count(run.sums["number of nan iterations"]),
        "consumed_samples": last.get("consumed samples"),
        "memory_mib": {str(rank): sizes for rank, sizes in sorted(run.memory.items())},
        "milestones": run.milestones,
        "evaluations": [{"where": one.where, **one.values} for one in run.evaluations],
        "timers": [
            {
                "name": name,
                "count": timer.count,
                "mean_ms": timer.mean,
                "longest_ms": timer.longest,
                "slowest_rank": timer.slowest_rank[0] if timer.slowest_rank else None,
                "slowest_rank_mean_ms": timer.slowest_rank[1] if timer.slowest_rank else None,
            }
            for name, timer in run.timers.items()
        ],
        "compute_ms": {str(rank): time for rank, time in sorted(run.compute_ms.items())},
        "arguments": run.arguments,
        "last_fields": last,
    }
    if run.series is not None:
        data["series"] = {name: one.points() for name, one in run.series.items()}
        data["checkpoints"] = list(run.checkpoints)
    shown: dict[str, Any] = finite(data)
    return shown


def progress(run: Run) -> dict[str, Any]:
    """Return a run's progress by its last line, in the format of our trainer's ``progress.json``.

    Checkpoints are left out, because their directory is unknown.
    """
    last, sequence = run.last_values, _sequence(run)
    milliseconds = run.recent_times[-1] if run.recent_times else run.first_milliseconds
    batch, samples = last.get("global batch size"), last.get("samples per second")
    if batch and milliseconds:
        samples = batch * 1000.0 / milliseconds
    data = finite(
        {
            "iteration": run.last_iteration,
            "train_iterations": run.train_iterations,
            "loss": run.loss.last,
            "lr": last.get("learning rate"),
            "step_seconds": milliseconds / 1000.0 if milliseconds else None,
            "tokens_per_second": samples * sequence if samples and sequence else None,
            "tflops": next((last[name] for name in _TFLOPS if name in last), None),
            "consumed_samples": last.get("consumed samples"),
            "losses": [list(point) for point in run.loss.curve.points()],
        }
    )
    assert isinstance(data, dict)
    return data


def _sequence(run: Run) -> float | None:
    """Return the number of tokens per sample, if the log has it."""
    tokens, samples = run.last_values.get("consumed tokens"), run.last_values.get("consumed samples")
    if tokens and samples:
        return tokens / samples
    text = run.arguments.get("seq_length", "")
    return float(text) if text.isdecimal() else None


def _skipped(run: Run) -> float:
    """Return the number of skipped steps. An engine logs their number since the start of the training."""
    last = run.last_values.get("skipped")
    if last is None:
        return run.sums[SKIPPED]
    interval = (run.last_iteration - run.first_iteration) / max(1, run.lines - 1)
    goes_on = run.lines > 1 and run.first_iteration > interval
    return last - run.first_values.get("skipped", 0.0) if goes_on else last


def _count(total: float) -> int:
    """Return a number of steps; 0 if a program logged one that is not finite."""
    return int(total) if math.isfinite(total) else 0
