# SPDX-License-Identifier: GPL-3.0-or-later
"""A job's log files → what a verdict needs to know. Reads files and changes nothing."""

from __future__ import annotations

import contextlib
import datetime
import difflib
import functools
import glob
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rdm_log import rank_timers
from rdm_log.errors import Finding, Findings
from rdm_log.heads import ARGUMENT_OF, head, info_of, info_of_job, vocabulary_of
from rdm_log.parallel import of_each
from rdm_log.samples import Device, Sample
from rdm_log.scan import END, pieces, regular, with_pieces
from rdm_log.signs import WINDOW_S, Sign, of_node
from rdm_log.states import STATES, state_of, states_of
from rdm_log.summary import NothingToRead, log_files, newest_run, summarise, unreadable_logs
from rdm_log.tails import tail, text_lines
from rdm_log.verdict import Observed, Verdict
from rdm_log.wording import listed, size_text

ENDED = ("finished", "failed", "stopped")
"""The launcher's words for a job that is over."""
STREAM = ".gpu.jsonl"
"""The suffix of a node's machine-readable records."""
_SILENT_S = 86400.0
"""When no log was written for this long, the job is over, however it ended."""
_LIVE_S = 300.0
"""A state file of a running job is stale when it is older than this."""
_PLAIN = (
    *("state", "reason", "requested", "reported", "gpu_processes", "seconds_since_step", "vocabulary"),
    "silent_since",
)
"""Fields of ``Observed`` that are plain data already."""
_FORMER = {"requested": "asked", "reported": "told"}
"""The names of these fields on nodes with a trainer of 0.5 or older."""

_HEADS = 8
"""The number of logs whose heads are always read. The first process, which writes most, is among them."""
_ERROR_BYTES = 128 * 1024 * 1024
_LEAST_ERRORS = 128 * 1024
"""Bytes of errors that are read from all nodes together, and the least from each node."""
_AT_BEGIN = 4
"""A fourth of them is read at the beginning, the rest at the end, where a job says why it died."""
_MIXED_BYTES = 4 * 1024 * 1024
"""Bytes read at the ends of logs with both standard output and error, from all nodes together…"""
_LEAST_MIXED, _MOST_MIXED = 16 * 1024, 256 * 1024
"""… and the least and the most from each node. Less than of errors, since few lines of output matter."""
_STEP = re.compile(r"\biteration +(\d{1,15})/ *\d")
_SETTING = re.compile(
    r"""^(?:export +)?([A-Z][A-Z0-9_]*)=["']?([^"'#\s$`]+)["']?[ \t]*(?:#.*)?$""", re.MULTILINE
)
_PROCESSORS = " CPU cores"
"""Ends the device name in the records of nodes without a GPU: our agents write their CPUs instead."""
_DEVICE = re.compile(rf"^\[\d+\] (?!\d+{_PROCESSORS}).*\| +(\d+) / +(\d+) MB \|(.*)$")
_MB = 1024 * 1024
"""What gpustat calls MB."""
_DEVICES = 16
_SAMPLES = 120
_MOST_BYTES = 256 * 1024
"""At most this many of a node's last samples are read, from at most this many bytes at the end…"""
_EACH = 20
_EVERY = 4
"""… all of the last _EACH, and one in _EVERY of those before: a thousand nodes have 100,000 samples."""


def observe(
    path: Path,
    *,
    now: float,
    node: str = "",
    state: str = "",
    conf: Path | None = None,
    runs: Sequence[Mapping[str, Any]] | None = None,
) -> Observed:
    """Return what the logs of a job show.

    Args:
        path: A job's directory, one with ``NODE.out``, ``NODE.err`` and ``NODE.gpu``, or one log.
        now: Seconds since 1970.
        node: Read only this node's files; by default all nodes'.
        state: The launcher's or scheduler's word, if known; by default the one in the job's directory.
        conf: The requested configuration, as ``KEY=VALUE`` lines. Values that a shell would compute are
            ignored.
        runs: The runs in the logs, if they have been read already.

    Raises:
        NothingToRead: There are no logs, the state is not a known word, or ``conf`` cannot be read.
    """
    check_state(state)
    outputs = [file for file in log_files(path) if not node or node_of_log(file) == node]
    if runs is None:
        runs = summarise(outputs, needs_steps=False).runs
    whole = path.is_dir()
    folder = outputs[0].parent if outputs else path / "logs"
    kept = read_json(path / "state.json") if whole and not state else {}
    word, reason = (one if isinstance(one := kept.get(key), str) else "" for key in ("state", "reason"))
    word = state or word
    watched = _watched(kept, path / "state.json", now)
    changed = max((file.stat().st_mtime for file in outputs), default=None)
    waited = max(0.0, now - changed) if changed is not None and word not in ENDED else None
    is_silent = waited is not None and waited > _SILENT_S and not state
    logs = pieces(outputs)
    heads = [_head_of(log) for log in logs[:_HEADS]]
    info = info_of_job([one.info for one in heads])
    run = newest_run(runs)
    logged = {**info, **(run["arguments"] if run else {})}
    wanted = _by_logged_names(_settings(conf), logged) if conf else {}

    def of_nodes(ending: str) -> list[Path]:
        return sorted(folder.glob(f"{glob.escape(node) or '*'}{ending}")) if whole else []

    errors = _all_errors(of_nodes(".err"))
    return Observed(
        state=word,
        reason=reason,
        runs=runs,
        findings=[
            *itertools.chain(*(one.findings for one in errors)),
            *_all_mixed(_mixed(logs, whole), whole),
        ],
        # The script's job info is compared with what its program reports.
        requested={
            **{ARGUMENT_OF[key]: value for key, value in info.items() if key in ARGUMENT_OF},
            **wanted,
        },
        reported={node: logged} if logged else {},
        gpu_processes=_processes(of_nodes(".gpu")),
        seconds_since_step=None if is_silent or run is None else waited,
        # Most programs do not log when they begin to save or evaluate.
        reports_phases=False,
        vocabulary=next((one.vocabulary for one in heads if one.vocabulary is not None), None),
        signs=[
            *(_slow(run, logged, heads, logs) if run else ()),
            *(_not_compared(conf) if conf and not logged.keys() & wanted.keys() else ()),
            *(_left_out(path, folder, node) if whole else ()),
            *_not_read(errors),
            # A job's observer has evaluated these samples already; for a job that has ended they are moot.
            *(() if watched or word in ENDED else itertools.chain(*of_each(_signs, of_nodes(STREAM)))),
        ],
        silent_since=_minute(changed) if is_silent and changed is not None else "",
        watched=watched,
    )


def check_state(state: str) -> None:
    """Check that each line is a word for a job's state. Accepts an empty text, and words cut by sacct.

    Raises:
        NothingToRead: A line is not such a word.
    """
    for line in state.splitlines():
        if all(word in STATES for word in states_of(line)):
            continue
        near = difflib.get_close_matches(state_of(line), sorted(STATES), 1)
        hint = (
            f"did you mean {near[0].upper()}?" if near else "give one such as RUNNING, COMPLETED or FAILED."
        )
        raise NothingToRead(f"{line.strip()} is no state of a job that Slurm or a launcher knows; {hint}")


def merged(parts: Sequence[Observed]) -> Observed:
    """Merge what each node of a job observed in its own files; runs are left out."""
    # The master's state is that of the whole job: it has a reason and a final word.
    stated = max(parts, key=lambda one: (bool(one.watched), bool(one.reason), bool(one.state)))
    waited = [one.seconds_since_step for one in parts if one.seconds_since_step is not None]
    silent = [one.silent_since for one in parts]
    return Observed(
        state=stated.state,
        reason=stated.reason,
        reports_phases=False,
        findings=[finding for one in parts for finding in one.findings],
        requested={key: value for one in parts for key, value in one.requested.items()},
        reported={node: info for one in parts for node, info in one.reported.items()},
        gpu_processes={node: count for one in parts for node, count in one.gpu_processes.items()},
        seconds_since_step=min(waited, default=None),
        vocabulary=next((one.vocabulary for one in parts if one.vocabulary is not None), None),
        signs=[sign for one in parts for sign in one.signs],
        # One node may be quiet for days while the job goes on.
        silent_since=max(silent) if all(silent) else "",
        watched=stated.watched,
    )


def to_json(seen: Observed) -> dict[str, Any]:
    """Return an ``Observed`` as plain data, without the runs."""
    return {
        **{key: getattr(seen, key) for key in _PLAIN},
        "findings": [one.to_json() for one in seen.findings],
        "signs": [one.to_json() for one in seen.signs],
        "watched": seen.watched and seen.watched.to_json(),
    }


def of_json(data: Mapping[str, Any]) -> Observed:
    """Return the ``Observed`` from ``to_json``'s plain data."""
    return Observed(
        **{key: data[key] if key in data else data[_FORMER[key]] for key in _PLAIN},
        reports_phases=False,
        findings=[Finding.of(one) for one in data["findings"]],
        signs=[Sign.of(one) for one in data["signs"]],
        watched=Verdict.of(data["watched"] or {}),
    )


def node_of_log(file: Path) -> str:
    """Return the node that wrote a log: ``n1`` for ``n1.out`` and ``n1.out.2``."""
    return file.name.partition(".out")[0]


def _minute(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).isoformat(" ", "minutes")


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a job's directory; empty if it is absent or being written."""
    try:
        found = json.loads(regular(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _watched(state: Mapping[str, Any], file: Path, now: float) -> Verdict | None:
    """Return the verdict in a job's state file; None if its writer is gone while the job goes on."""
    verdict = state.get("verdict")
    if not isinstance(verdict, dict):
        return None
    if state.get("state") not in ENDED and now - file.stat().st_mtime > _LIVE_S:
        return None
    return Verdict.of(verdict)


@dataclass(frozen=True)
class _Head:
    """What is at the head of a node's log."""

    node: str
    info: Mapping[str, str] = field(default_factory=dict)
    vocabulary: int | None = None


def _head_of(log: Sequence[Path]) -> _Head:
    """Return the head of a log, given its pieces; an empty one if it cannot be read."""
    try:
        text = head(log[0])
    except OSError:
        return _Head(log[-1].stem)
    return _Head(log[-1].stem, info_of(text), vocabulary_of(text))


def _slow(
    run: Mapping[str, Any], logged: Mapping[str, str], heads: Sequence[_Head], logs: Sequence[Sequence[Path]]
) -> list[Sign]:
    """Return the ranks that compute longer than their peers, if the timers of all ranks are logged.

    Args:
        run: The run.
        logged: Its job info and arguments.
        heads: The heads of the first logs.
        logs: All logs, each as its pieces.
    """
    compute = {int(rank): float(time) for rank, time in run["compute_ms"].items()}
    layout = rank_timers.layout(logged)
    if not compute or layout is None:
        return []
    names = {}
    for one in itertools.chain(heads, map(_head_of, logs[len(heads) :])):
        number = one.info.get("NODE_RANK", "")
        if number.isdecimal():
            names[int(number)] = one.node
    count = logged.get("NNODES", "")
    each = len(compute) // int(count) if count.isdecimal() and int(count) else 0
    nodes = {rank: names[rank // each] for rank in compute if rank // each in names} if each else {}
    return rank_timers.slow(compute, *layout, nodes)


class _Errors(NamedTuple):
    """The findings in a node's file of errors, and the number of bytes in its middle that were not read."""

    node: str
    findings: Sequence[Finding] = ()
    unread: int = 0


def _all_errors(files: Sequence[Path]) -> list[_Errors]:
    """Return the findings in files of errors, reading at most the same number of bytes from each."""
    share = max(_LEAST_ERRORS, _ERROR_BYTES // max(1, len(files)))
    return of_each(functools.partial(_errors_of, share), files)


def _errors_of(share: int, file: Path) -> _Errors:
    """Return the findings in a node's errors, ``NODE.err``; none if the file cannot be read."""
    found, unread = Findings(), 0
    try:
        unread = max(0, _size(file) - share)
        begin = share // _AT_BEGIN
        for line in text_lines(file, end=begin if unread else END):
            # The last line of the beginning may be cut…
            if line.endswith("\n") or not unread:
                found.add(line)
        if unread:
            found.skip()
            # … and so may the first line of the end.
            for line in itertools.islice(text_lines(file, begin=begin + unread - 1), 1, None):
                found.add(line)
    except OSError:
        # _left_out names the file.
        unread = 0
    found.end()
    return _Errors(file.stem, [replace(one, node=file.stem) for one in found.found()], unread)


def _not_read(errors: Sequence[_Errors]) -> list[Sign]:
    """Return a note that the middle of long files of errors was not read."""
    long = [one for one in errors if one.unread]
    if not long:
        return []
    nodes, size = listed(one.node for one in long), size_text(sum(one.unread for one in long))
    text = f"Of the errors of {nodes} only the beginning and the end were read: {size} were not."
    return [Sign("files", text, is_note=True)]


def _mixed(logs: Sequence[Sequence[Path]], whole: bool) -> list[Path]:
    """Return the logs that may contain errors: those of nodes without a separate file of errors."""
    files = [log[-1] for log in logs]
    return [one for one in files if not (whole and _size(one.with_name(f"{node_of_log(one)}.err")))]


def _size(file: Path) -> int:
    """Return the bytes of a log and its pieces."""
    return sum(one.stat().st_size for one in with_pieces(file) if one.exists())


def _all_mixed(files: Sequence[Path], whole: bool) -> list[Finding]:
    """Return the findings at the ends of logs, reading at most the same number of bytes from each."""
    share = min(_MOST_MIXED, max(_LEAST_MIXED, _MIXED_BYTES // max(1, len(files))))
    found = itertools.chain(*of_each(functools.partial(_in_output, share), files))
    # The name of a single log need not be a node's.
    return list(found) if whole else [replace(one, node="") for one in found]


def _in_output(share: int, file: Path) -> list[Finding]:
    """Return the findings of the last attempt at the end of a log of standard output and error."""
    lines = tail(file, share, most=share)
    found, last = Findings(), 0
    # In a longer log the first line may be cut.
    for line in lines[_size(file) > share :]:
        if step := _STEP.search(line):
            if int(step[1]) < last:
                found = Findings()
            last = int(step[1])
            if "rror" not in line:
                continue
        found.add(f"{line}\n")
    found.end()
    return [replace(one, node=node_of_log(file)) for one in found.found()]


def _signs(file: Path) -> list[Sign]:
    """Return the signs of a node, from the last samples of its agent in ``NODE.gpu.jsonl``."""
    samples = []
    lines = tail(file, _SAMPLES, most=_MOST_BYTES)
    for line in (*lines[:-_EACH:_EVERY], *lines[-_EACH:]):
        # The first and the last line may be cut.
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            sample = Sample.of(json.loads(line))
            gpus = tuple(one for one in sample.devices if not one.name.endswith(_PROCESSORS))
            samples.append(replace(sample, devices=gpus))
    if samples:
        samples = [one for one in samples if one.time >= samples[-1].time - WINDOW_S]
    node = file.name.removesuffix(STREAM)
    return of_node(node, samples, ranks=sorted(samples[-1].ranks) if samples else ())


def _left_out(path: Path, folder: Path, node: str) -> list[Sign]:
    """Return a note that names the files of a job that cannot be read."""
    found = unreadable_logs(folder, node, path / "state.json")
    text = f"Not all logs were read: {listed(found, separator='; ')}."
    return [Sign("files", text, is_note=True)] if found else []


def _settings(conf: Path) -> dict[str, str]:
    try:
        return dict(_SETTING.findall(conf.read_text(encoding="utf-8", errors="replace")))
    except OSError as error:
        raise NothingToRead(f"{conf} cannot be read: {error.strerror}.") from error


def _by_logged_names(settings: Mapping[str, str], logged: Mapping[str, str]) -> dict[str, str]:
    """Return the requested settings by the names that the job reports: the script's, or its arguments'."""
    names = {key: ARGUMENT_OF.get(key, key.lower()) for key in settings if key not in logged}
    return {names[key] if names.get(key) in logged else key: value for key, value in settings.items()}


def _not_compared(conf: Path) -> list[Sign]:
    text = f"Nothing of {conf.name} was compared: none of its keys is in what the logs say at their head."
    return [Sign("configuration", text, is_note=True)]


def _processes(files: Sequence[Path]) -> dict[str, int | None]:
    """Return the number of GPUs in use by node; None for a node whose file shows no device.

    Nodes whose records show only CPUs are left out. A GPU that lists no process is in use if its memory is;
    see ``Device.is_in_use``.
    """
    found: dict[str, int | None] = {}
    for file in files:
        lines = tail(file, _DEVICES)
        devices = [match.groups() for line in lines if (match := _DEVICE.match(line))]
        if devices:
            found[file.stem] = sum(
                bool(names.strip()) or Device(0, "", used=int(used) * _MB, total=int(total) * _MB).is_in_use
                for used, total, names in devices
            )
        elif not any(_PROCESSORS in line for line in lines):
            found[file.stem] = None
    return found
